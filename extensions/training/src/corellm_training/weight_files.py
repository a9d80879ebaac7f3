"""Weights that a caller gives, in files: how they reach the engine, also one in another process.

Knows names and tensors; whether they fit a model is `weight_source`'s to know. Imports torch only where there are some.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from corellm.errors import InvalidParameterError

if TYPE_CHECKING:
    from torch import Tensor

    Weights: TypeAlias = Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] | str | os.PathLike[str]

_FILE_BYTES = 1 << 30
"""Tensors of so many bytes are in memory twice."""


@contextmanager
def weight_directory(weights: Weights) -> Iterator[tuple[Path, bool]]:
    """Yield the directory of weights, and whether it is a temporary one, which the block may empty.

    Raises:
        InvalidParameterError: they are neither a directory nor named tensors, or a name comes twice.
    """
    if isinstance(weights, str | os.PathLike):
        directory = Path(weights).expanduser().resolve()
        if not directory.is_dir():
            raise InvalidParameterError(f"weights: there is no directory {str(weights)!r:.300}", param="weights")
        yield directory, False
        return
    with tempfile.TemporaryDirectory(prefix="corellm-weights-") as name:
        _write(weights, Path(name))
        yield Path(name), True


def _write(weights: Any, folder: Path) -> None:
    """Write tensors to files of a gigabyte or so, as they come: a generator may hold one at a time."""
    from safetensors.torch import save_file

    names: set[str] = set()
    part: dict[str, Tensor] = {}
    num_bytes = num_files = 0
    for name, tensor in _pairs(weights):
        if name in names:
            raise InvalidParameterError(f"weights: {name!r:.200} comes twice", param="weights")
        names.add(name)
        part[name] = tensor
        num_bytes += tensor.nbytes
        if num_bytes >= _FILE_BYTES:
            save_file(part, folder / f"{num_files:05}.safetensors")
            part, num_bytes, num_files = {}, 0, num_files + 1
    if part:
        save_file(part, folder / f"{num_files:05}.safetensors")
    if not names:
        raise InvalidParameterError("weights: there are none", param="weights")


def _pairs(weights: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield each name with a copy of its tensor on the host: the caller may use the memory for the next one."""
    import torch

    if not isinstance(weights, Iterable):
        raise InvalidParameterError(
            f"weights must be tensors by name, pairs of them, or a directory; got a {type(weights).__name__}",
            param="weights",
        )
    for pair in weights.items() if isinstance(weights, Mapping) else weights:
        match pair:
            case (str() as name, torch.Tensor() as tensor) if tensor.layout == torch.strided and not tensor.is_meta:
                yield name, tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            case _:
                raise InvalidParameterError(
                    f"weights must be pairs of a name and a dense tensor, got {pair!r:.100}", param="weights"
                )
