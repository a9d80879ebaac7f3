"""A GGUF file, or the parts of one: what it states, and where its tensors lie. Knows neither models nor types.

Every length is checked against the file's size before it is used: a truncated or hostile file gives an error.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from corellm.errors import CheckpointError

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Types of values that have one size, as `struct` names them."""
_STRING, _ARRAY = 8, 9
_DEEPEST, _MOST_DIMENSIONS, _LONGEST = 4, 4, 1 << 24
"""Bounds on arrays within arrays, on dimensions of a tensor, and on values of an array."""


class StoredTensor(NamedTuple):
    """Where a tensor lies in the file."""

    shape: tuple[int, ...]
    """The inputs last, as torch has it."""
    kind: GGMLQuantizationType
    """How its numbers are stored."""
    data: mmap.mmap
    """The file that has it, mapped, private to this process."""
    offset: int
    num_bytes: int

    @property
    def raw(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Its bytes, mapped, private to this process."""
        return np.frombuffer(self.data, np.uint8, self.num_bytes, self.offset)

    @property
    def bytes_per_row(self) -> int:
        """Bytes of its last dimension."""
        block, size = GGML_QUANT_SIZES[self.kind]
        return self.shape[-1] // block * size


@dataclass(frozen=True)
class GgufFile:
    """The header of a file, or of the first of its parts with the tensors of all."""

    paths: tuple[Path, ...]
    """One for each part."""
    stated: Mapping[str, Any]
    """Values by key."""
    tensors: Mapping[str, StoredTensor]
    state: list[int]
    """As of `state_of`."""

    @property
    def path(self) -> Path:
        """The file, or its first part."""
        return self.paths[0]

    @property
    def architecture(self) -> str:
        """Name of the model's architecture, as llama.cpp has it."""
        return str(self.stated.get("general.architecture"))

    def value(self, key: str, *kinds: type, default: Any = None) -> Any:
        """Return a value of one of these types.

        Raises:
            CheckpointError: it is of another type, or is not there and has no default.
        """
        found = self.stated.get(key, default)
        if not isinstance(found, kinds) or (isinstance(found, bool) and bool not in kinds):  # a bool is an int, too
            raise CheckpointError(
                f"{self.path}: {key} is {found!r:.60}, expected {' or '.join(k.__name__ for k in kinds)}"
            )
        return found

    def positive(self, key: str, default: int | None = None) -> int:
        """Return a whole number above zero.

        Raises:
            CheckpointError: it is none, or is not there and has no default.
        """
        found: int = self.value(key, int, default=default)
        if found < 1:
            raise CheckpointError(f"{self.path}: {key} is {found}, expected at least 1")
        return found

    def count(self, key: str) -> int:
        """Return a number of parts, each of which has tensors.

        Raises:
            CheckpointError: it is no number, or there are fewer tensors.
        """
        found: int = self.value(key, int)
        if not 0 < found <= len(self.tensors):
            raise CheckpointError(f"{self.path}: {key} is {found}, and the file has {len(self.tensors)} tensors")
        return found

    def require_state(self, state: list[int]) -> None:
        """Raise a `CheckpointError` if the file is not the one of that state."""
        if self.state != state:
            raise CheckpointError(f"{self.path} was replaced while it was loaded; load it again")


def state_of(*files: Path | int) -> list[int]:
    """Return what tells files, or open ones, from others of their names: size, times, place."""
    stats = [os.stat(file) for file in files]
    return [n for stat in stats for n in (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)]


def read_file(paths: Sequence[Path]) -> GgufFile:
    """Return what a file states, or its parts, which are given in their order.

    Raises:
        CheckpointError: as of `read_header`; or parts are missing, or of different files.
    """
    parts = [read_header(path) for path in paths]
    first = parts[0]
    count = first.value("split.count", int, default=0) or 1
    if count != len(parts):
        raise CheckpointError(
            f"{first.path} is one of {count} parts, and {len(parts)} can be told by its name: all must lie beside each "
            f"other under their published names (...-00001-of-{count:05}.gguf); or join them (llama-gguf-split --merge)"
        )
    tensors: dict[str, StoredTensor] = {}
    for number, part in enumerate(parts):
        stated = part.value("split.no", int, default=0), part.value("split.count", int, default=0) or 1
        if stated != (number, count) or not tensors.keys().isdisjoint(part.tensors):
            raise CheckpointError(f"{part.path} is not part {number + 1} of {count} of {first.path}; download it again")
        tensors |= part.tensors
    if first.value("split.tensors.count", int, default=len(tensors)) != len(tensors):
        raise CheckpointError(f"{first.path}: its parts have {len(tensors)} tensors, not as many as it states")
    states = [n for part in parts for n in part.state]
    return GgufFile(tuple(paths), first.stated, tensors, states)


def read_header(path: Path) -> GgufFile:
    """Return what one file states.

    Raises:
        CheckpointError: it is no GGUF file, of a version or with types that are not known, truncated or damaged.
    """
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            return _Reader(path, data, state_of(file.fileno())).read()
    except (OSError, ValueError, struct.error) as error:  # of `mmap` for an empty file, of text that is none
        raise CheckpointError(f"{path}: not a readable GGUF file ({error}); download it again") from error


class _Reader:
    """Reads a header from its beginning on."""

    def __init__(self, path: Path, data: mmap.mmap, state: list[int]) -> None:
        self._path, self._data, self._state, self._at = path, data, state, 0

    def read(self) -> GgufFile:
        magic = self._data[:4]
        if magic != _MAGIC:
            raise ValueError(f"it begins with {magic!r}, not with {_MAGIC!r}")
        self._at = 4
        if (version := self._number("I")) not in _VERSIONS:
            raise ValueError(f"version {version}; {' and '.join(map(str, _VERSIONS))} can be read")
        num_tensors, num_values = self._number("Q"), self._number("Q")
        stated: dict[str, Any] = {}
        for _ in range(num_values):
            key = self._text()
            if key in stated:
                raise ValueError(f"{key!r} is there twice")
            stated[key] = self._value(self._number("I"))
        places = [self._place() for _ in range(num_tensors)]
        alignment = stated.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"general.alignment is {alignment!r:.60}, not a power of two")
        start = -(-self._at // alignment) * alignment
        tensors: dict[str, StoredTensor] = {}
        for name, shape, kind, offset in places:
            if name in tensors:
                raise ValueError(f"the tensor {name!r} is there twice")
            tensors[name] = self._tensor(name, shape, kind, start + offset)
        return GgufFile((self._path,), stated, tensors, self._state)

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> StoredTensor:
        try:
            known = GGMLQuantizationType(kind)
            block, size = GGML_QUANT_SIZES[known]
        except (ValueError, KeyError):
            raise ValueError(f"the tensor {name!r} has the type {kind}, which is not known") from None
        if not shape or 0 in shape or shape[-1] % block:
            raise ValueError(
                f"the tensor {name!r} of {known.name} has the shape {shape}; rows are multiples of {block}"
            )
        num_bytes = prod(shape) // block * size
        if offset + num_bytes > len(self._data):
            raise ValueError(
                f"the tensor {name!r} ends at byte {offset + num_bytes} of {len(self._data)}: the file is truncated"
            )
        return StoredTensor(shape, known, self._data, offset, num_bytes)

    def _place(self) -> tuple[str, tuple[int, ...], int, int]:
        name, count = self._text(), self._number("I")
        if count > _MOST_DIMENSIONS:
            raise ValueError(f"the tensor {name!r} has {count} dimensions")
        shape = tuple(self._number("Q") for _ in range(count))[::-1]
        return name, shape, self._number("I"), self._number("Q")

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY or depth >= _DEEPEST:
            raise ValueError(f"a value has the type {kind}, which is not known")
        kind, count = self._number("I"), self._number("Q")
        if count > _LONGEST:
            raise ValueError(f"an array has {count} values")
        if kind in _SCALARS:
            form = f"<{count}{_SCALARS[kind]}"
            return list(struct.unpack(form, self._bytes(count * struct.calcsize(f"<{_SCALARS[kind]}"))))
        return [self._value(kind, depth + 1) for _ in range(count)]

    def _number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self._bytes(struct.calcsize(f"<{form}")))[0]

    def _text(self) -> str:
        return self._bytes(self._number("Q")).decode("utf-8")

    def _bytes(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise ValueError(f"it ends within its header, at byte {len(self._data)}: it is truncated")
        taken = self._data[self._at : end]
        self._at = end
        return taken
