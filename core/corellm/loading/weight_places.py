"""Where a loaded model's weights are: the tensors of its modules, also of those that packing and fusing made.

Knows modules; knows neither checkpoints nor names in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from torch import Tensor, nn


class WeightPlace(NamedTuple):
    """A tensor of a module."""

    module: nn.Module
    name: str

    @property
    def tensor(self) -> Tensor:
        """What is there now."""
        tensor: Tensor = getattr(self.module, self.name)
        return tensor


def weight_places(model: nn.Module) -> Mapping[str, WeightPlace]:
    """Return the places of all of a model's tensors, by name: the same ones for every load of a checkpoint."""
    return {
        f"{path}.{name}": WeightPlace(module, name)
        for path, module in model.named_modules()
        for name in _tensor_names(module)
    }


def _tensor_names(module: nn.Module) -> Iterator[str]:
    registered = chain(
        module.named_parameters(recurse=False, remove_duplicate=False),
        module.named_buffers(recurse=False, remove_duplicate=False),
    )
    for name, value in chain(registered, vars(module).items()):
        if isinstance(value, Tensor) and value.numel():
            yield name
