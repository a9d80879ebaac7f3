"""Names of tensors in files, and of the parameters that transformers makes of them."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key


class ModelNames:
    """Finds the parameters of a transformers model by the names that tensors have in its files."""

    def __init__(self, model: Any) -> None:
        mapping = get_model_conversion_mapping(model)
        self._renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
        self._converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
        self._prefix, self._known = model.base_model_prefix, model.state_dict()
        self._model: nn.Module = model

    def parameter(self, tensor: str) -> str | None:
        """Return the parameter that a tensor becomes as it is; None for none, and where several are made into one."""
        name, converted = rename_source_key(tensor, self._renamings, self._converters, self._prefix, self._known)
        return name if converted is None and name in self._known else None

    def linear(self, layer: str) -> str | None:
        """Return the module whose weight is `LAYER.weight` in files; None where that is no plain linear layer.

        Only such a layer is read where the files have it quantized.
        """
        name, found, last = (self.parameter(f"{layer}.weight") or "").rpartition(".weight")
        return name if found and not last and type(self._model.get_submodule(name)) is nn.Linear else None
