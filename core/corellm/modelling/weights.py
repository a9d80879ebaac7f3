"""A checkpoint's weights under their published names, for adapters that place them in a model themselves.

Safetensors only, in one file or many: pickles can run code. Knows files and shapes; knows no model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor

from corellm.errors import CheckpointError

_INDEX = "model.safetensors.index.json"


def weight_files(path: Path, *, advice: str = "download all files") -> list[Path]:
    """Return a checkpoint's files with weights: those that its index names, else all.

    Args:
        path: its directory.
        advice: what to do if there is none, for the error.

    Raises:
        CheckpointError: there is none, or not all are there.
    """
    index = path / _INDEX
    if not index.is_file():
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise CheckpointError(
                f"{path} has no *.safetensors; pickles (*.bin) can run code and are not read; {advice}"
            )
        return files
    try:
        files = [path / name for name in sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{index}: not a readable index of weights ({error})") from error
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise CheckpointError(f"{path} lacks {', '.join(missing[:3])}, which {_INDEX} names; download all files")
    return files


def read_weights(path: Path, *, advice: str = "download all files") -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the tensor of each of a checkpoint's weights, on the host.

    Args:
        path, advice: as of `weight_files`.

    Raises:
        CheckpointError: a file is absent or broken.
    """
    from safetensors import SafetensorError, safe_open

    for file in weight_files(path, advice=advice):
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 -- not a mapping
                    yield name, tensors.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file}: the weights cannot be read ({error}); download the file again") from error


def check_weights(path: Path, wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Check that a checkpoint has all weights of a model, and no others, in their shapes.

    Args:
        path: of the checkpoint, for the error.
        wanted: the model's, by name; only shapes are looked at.
        found: the checkpoint's, by the model's names.

    Raises:
        CheckpointError: one is missing, misshapen, or has no place.
    """
    misshapen = [
        f"{name} {list(tensor.shape)} (not {list(wanted[name].shape)})"
        for name, tensor in found.items()
        if name in wanted and tensor.shape != wanted[name].shape
    ]
    for names, meaning in (
        (sorted(wanted.keys() - found.keys()), "the checkpoint lacks weights the model needs"),
        (sorted(found.keys() - wanted.keys()), "the checkpoint has weights the model has no place for"),
        (sorted(misshapen), "weights have another shape than the model's"),
    ):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise CheckpointError(f"{path}: {meaning}: {', '.join(names[:3])}{more}")
