"""Safetensors files that are written tensor by tensor: no more than one is in memory.

Knows the format's header; knows neither models nor how weights are rounded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

INDEX = "model.safetensors.index.json"
TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
"""Names of types in a header."""


@dataclass(frozen=True)
class Entry:
    """A tensor of a header."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Size of its values."""
        return prod(self.shape) * self.dtype.itemsize


def shards(entries: Iterable[Entry], most_bytes: int) -> Mapping[str, Sequence[Entry]]:
    """Return which file has which tensors, in their order; one of more than `most_bytes` has a file of its own."""
    parts: list[list[Entry]] = [[]]
    size = 0
    for entry in entries:
        if parts[-1] and size + entry.num_bytes > most_bytes:
            parts.append([])
            size = 0
        parts[-1].append(entry)
        size += entry.num_bytes
    if len(parts) == 1:
        return {"model.safetensors": parts[0]}
    return {f"model-{number:05}-of-{len(parts):05}.safetensors": part for number, part in enumerate(parts, 1)}


def write_shards(folder: Path, files: Mapping[str, Sequence[Entry]], tensors: Iterator[Tensor]) -> None:
    """Write the files, and the index if there are several; `tensors` gives the values of all entries in their order."""
    for file, entries in files.items():
        with (folder / file).open("wb") as opened:
            opened.write(_header(entries))
            for entry, tensor in zip(entries, tensors, strict=False):  # the rest is of the next file
                assert (tensor.dtype, tuple(tensor.shape)) == (entry.dtype, entry.shape), entry
                opened.write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    assert next(tensors, None) is None  # what follows the last one is done, too
    if len(files) > 1:
        total = sum(entry.num_bytes for entries in files.values() for entry in entries)
        places = {entry.name: file for file, entries in files.items() for entry in entries}
        stated = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(stated, indent=2), encoding="utf-8")


def _header(entries: Sequence[Entry]) -> bytes:
    stated: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for entry in entries:
        place = [at, at := at + entry.num_bytes]
        stated[entry.name] = {"dtype": TYPES[entry.dtype], "shape": entry.shape, "data_offsets": place}
    text = json.dumps(stated, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
