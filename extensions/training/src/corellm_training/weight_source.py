"""The checkpoint that a model's weights are of: its directory, and updates over it, each some of its tensors.

Knows names, shapes and files; knows no model and no module.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from corellm.errors import CheckpointError, InvalidParameterError
from corellm.modelling.weights import weight_files
from corellm.plugin.hookset import did_you_mean

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""Types that a load turns into the model's."""


class _Header(NamedTuple):
    dtype: str
    shape: list[int]


@dataclass(frozen=True)
class WeightFile:
    """A file of safetensors, and what is in it."""

    path: Path
    headers: Mapping[str, _Header]


class WeightSource:
    """Where a model's weights are read from.

    Args:
        checkpoint: its directory.
        has_weights: whether it was loaded with the weights that are there; else all come with updates.
        tied: names in the model of weights that are others', which a checkpoint need not have.

    Attributes:
        updates: files that go over the checkpoint's, later ones over earlier ones. Replaced, never changed.
    """

    def __init__(self, checkpoint: Path, *, has_weights: bool, tied: Collection[str]) -> None:
        self._checkpoint, self._tied = checkpoint, tied
        self._files = [_described(path) for path in _files_of(checkpoint)] if has_weights else []
        self.updates: tuple[WeightFile, ...] = ()

    def checked(self, directory: Path) -> Sequence[WeightFile]:
        """Return the files of an update, whose names, shapes and types are the checkpoint's.

        Args:
            directory: with all or some of the weights, in safetensors, by the checkpoint's names.

        Raises:
            CheckpointError: a file is absent or broken.
            InvalidParameterError: which weight does not fit, by name.
        """
        files = [_described(path) for path in weight_files(directory, advice="save the weights as safetensors")]
        known = {name: header for file in self._files for name, header in file.headers.items()}
        for file in files if known else ():
            for name, given in file.headers.items():
                _check(name, given, known, self._tied)
        return files

    def with_update(self, files: Sequence[WeightFile]) -> tuple[WeightFile, ...]:
        """Return `updates` with one more; earlier ones of which it replaces every tensor are left out."""
        replaced = {name for file in files for name in file.headers}
        return (*(file for file in self.updates if not file.headers.keys() <= replaced), *files)

    def require(self, updates: Sequence[WeightFile]) -> None:
        """Raise an error where a file is gone that weights would be read from with these updates.

        Raises:
            CheckpointError: which.
        """
        replaced = {name for file in updates for name in file.headers}
        read = [*updates, *(file for file in self._files if not file.headers.keys() <= replaced)]
        for file in read:
            if not file.path.is_file():
                raise CheckpointError(
                    f"nothing was changed: {file.path} is gone, of which other weights are; bring it back, or give all"
                )

    @contextmanager
    def directory(self) -> Iterator[Path]:
        """Yield a directory with the checkpoint as it is with its updates: links, for as long as the block runs."""
        if not self.updates:
            yield self._checkpoint
            return
        with tempfile.TemporaryDirectory(prefix="corellm-weights-") as name:
            folder, index = Path(name), dict[str, str]()
            for path in self._checkpoint.iterdir():
                if path.suffix != ".safetensors" and path.name != _INDEX:
                    (folder / path.name).symlink_to(path.resolve())
            for number, file in enumerate((*self._files, *self.updates)):
                # loaders read files in the order of their names, and the last tensor of a name counts
                link = folder / f"model-{number:05}.safetensors"
                link.symlink_to(file.path.resolve())
                index |= dict.fromkeys(file.headers, link.name)
            used = {*index.values()}
            for link in folder.glob("model-*.safetensors"):
                if link.name not in used:
                    link.unlink()
            (folder / _INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}), encoding="utf-8")
            yield folder


def _files_of(checkpoint: Path) -> Sequence[Path]:
    """Return a checkpoint's files with weights, as loaders choose them: by the index, or the usual one, or all."""
    single = checkpoint / _SINGLE
    return [single] if single.is_file() and not (checkpoint / _INDEX).is_file() else weight_files(checkpoint)


def _described(path: Path) -> WeightFile:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 -- not a mapping
            return WeightFile(
                path, {name: _Header(part.get_dtype(), list(part.get_shape())) for name, part in slices.items()}
            )
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: the weights cannot be read ({error}); save the file again") from error


def _check(name: str, given: _Header, known: Mapping[str, _Header], tied: Collection[str]) -> None:
    wanted, fault = known.get(name), ""
    if wanted is None and any(f".{name}".endswith(f".{own}") for own in tied):
        fault = f"the checkpoint has no {name!r:.200}, which is tied to another of its weights; leave it out"
    elif wanted is None:
        fault = f"the checkpoint has no {name!r:.200}{did_you_mean(name, known)}"
    elif given.shape != wanted.shape:
        fault = f"{name} has the shape {given.shape}, in the checkpoint {wanted.shape}"
    elif given.dtype != wanted.dtype and not {given.dtype, wanted.dtype} <= _FLOATS:
        fault = f"{name} is of type {given.dtype}, in the checkpoint of {wanted.dtype}"
    if fault:
        raise InvalidParameterError(f"weights: nothing was changed: {fault}", param="weights")
