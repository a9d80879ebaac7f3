"""A checkpoint's weights under their published names, for adapters that place them in a model themselves.

Safetensors only, in one file or many: pickles can run code. Knows files and shapes; knows no model.
"""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from corellm.errors import CheckpointError

logger = logging.getLogger(__name__)

DOWNLOAD = "download all files"
_INDEX = "model.safetensors.index.json"
_COMPUTED = frozenset(
    {"position_ids", "token_type_ids", "inv_freq", "cos_cached", "sin_cached", "masked_bias", "exp_avg", "exp_avg_sq"}
)
"""Last parts of names under which older versions of transformers wrote what today's compute, or a trainer its state."""
_LAYER = re.compile(r"[^.]+\.\D[^.]*(\.[^.]+)*?\.\d+\.")
"""Names of weights in numbered layers: the model's own, also where an adapter left a published name as it is."""


def weight_files(path: Path, *, advice: str = DOWNLOAD) -> list[Path]:
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
        names = [Path(name) for name in sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{index}: not a readable index of weights ({error})") from error
    for name in names:
        if name.is_absolute() or ".." in name.parts:
            raise CheckpointError(f"{index} names {str(name)!r:.200}, which is elsewhere; move the file beside it")
    files = [path / name for name in names]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise CheckpointError(f"{path} lacks {', '.join(missing[:3])}, which {_INDEX} names; download all files")
    return files


def read_weights(path: Path, *, advice: str = DOWNLOAD) -> Iterator[tuple[str, Tensor]]:
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


@torch.no_grad()
def fill_weights(
    path: Path,
    weights: Mapping[str, Tensor],
    names: Callable[[str], Sequence[str]],
    *,
    advice: str = DOWNLOAD,
) -> None:
    """Give a model a checkpoint's weights, each in turn.

    A parameter as a whole becomes the file's memory where device and dtype agree: its pages are read when they are
    first used, and processes share them. All else is written into the memory that is there.

    Args:
        path: of the checkpoint.
        weights: `{name: parameter or other memory}`, all that is to be filled.
        names: returns, for a name in the checkpoint, those of `weights` that its tensor has one behind the other along
            the first dimension; none for a weight without a use.
        advice: as of `weight_files`.

    Raises:
        CheckpointError: a file is absent or broken; or a weight is missing, misshapen, or has no place in a module.
    """
    missing, surplus, misshapen = {*weights}, set[str](), list[str]()
    for name, tensor in read_weights(path, advice=advice):
        targets = names(name)
        missing.difference_update(targets)
        if unknown := [target for target in targets if target not in weights]:
            surplus.update(unknown)
        elif places := [weights[target] for target in targets]:
            sizes = [len(place) for place in places] if len(places) > 1 else []
            shape = [sum(sizes), *places[0].shape[1:]] if sizes else list(places[0].shape)
            if list(tensor.shape) != shape:
                misshapen.append(f"{name} {list(tensor.shape)} (the model has {shape})")
                continue
            for place, part in zip(places, torch.split(tensor, sizes) if sizes else [tensor], strict=True):
                if isinstance(place, nn.Parameter) and (place.dtype, place.device) == (part.dtype, part.device):
                    place.data = part
                else:
                    place.copy_(part)
    check_names(path, weights.keys(), missing=missing, surplus=surplus, misshapen=misshapen)


def check_weights(path: Path, wanted: Mapping[str, Tensor], found: MutableMapping[str, Tensor]) -> None:
    """Check a checkpoint's weights against a model's; for adapters written before `load_published`, until 0.4.

    Args:
        path: of the checkpoint, for the error.
        wanted: the model's, by name; only shapes are looked at.
        found: the checkpoint's, by the model's names; those of no module of the model are taken out, with one warning.

    Raises:
        CheckpointError: one is missing, misshapen, or has no place in a module.
    """
    warnings.warn("check_weights goes with corellm 0.4: use load_published", DeprecationWarning, stacklevel=2)
    misshapen = [
        f"{name} {list(tensor.shape)} (the model has {list(wanted[name].shape)})"
        for name, tensor in found.items()
        if name in wanted and tensor.shape != wanted[name].shape
    ]
    surplus = found.keys() - wanted.keys()
    check_names(path, wanted, missing=wanted.keys() - found.keys(), surplus=surplus, misshapen=misshapen)
    for name in surplus:
        del found[name]


def check_names(
    path: Path,
    wanted: Collection[str],
    *,
    missing: Collection[str],
    surplus: Collection[str],
    misshapen: Collection[str],
    prefix: str = "",
) -> None:
    """Refuse a checkpoint whose weights are not the model's; warn of those that no module of the model misses.

    Those are of modules beside the model's own, as a value head, of the pooler of an inner model that is run without
    one, and numbers that are computed, as positions.

    Args:
        path: of the checkpoint.
        wanted: names of the model's weights.
        missing, surplus: names of weights that only the model has, or only the checkpoint.
        misshapen: names and shapes of weights that differ.
        prefix: of the inner model, with which names may or may not begin.

    Raises:
        CheckpointError: there are such; a surplus weight is of one of the model's modules, as of a layer too many.
    """
    inner = f"{prefix}."
    modules = {name.removeprefix(start).partition(".")[0] for name in wanted for start in ("", inner)} | {prefix}
    beside = {name for name in surplus if name.partition(".")[0] not in modules and not _LAYER.match(name)}
    foreign = beside | {name for name in surplus if _is_apart(name)}
    for names, meaning in (
        (missing, "the checkpoint lacks weights the model needs"),
        (misshapen, "weights have another shape than the model's"),
        (set(surplus) - foreign, "the checkpoint has weights the model has no place for"),
    ):
        if names:
            raise CheckpointError(f"{path}: {meaning}: {_listed(names, 3)}")
    if foreign:
        logger.warning(
            "%s: these weights are not used, as the model has no module for them: %s", path, _listed(foreign, 20)
        )


def _is_apart(name: str) -> bool:
    return name.rpartition(".")[2] in _COMPUTED or "pooler" in name.split(".")


def _listed(names: Collection[str], most: int) -> str:
    known = sorted(names)
    return ", ".join(known[:most]) + (f" and {len(known) - most} more" if len(known) > most else "")
