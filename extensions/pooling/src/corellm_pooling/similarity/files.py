"""Writes embeddings: as JSON lines, or as tensors in a safetensors file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corellm_pooling.similarity.entries import Embedded

FORMATS = (".jsonl", ".safetensors")


def as_json(embedded: Embedded) -> str:
    """Return one line: the text or the file, and its embedding or error; numbers are as short as float32 allows."""
    named = {embedded.entry.modality: embedded.entry.content}
    if embedded.vector is None:
        return _json({**named, "error": embedded.error})
    return _json({**named, "embedding": [float(str(x)) for x in embedded.vector]})


def write(all_embedded: Sequence[Embedded], path: Path) -> None:
    """Write a file; its ending gives the format.

    A safetensors file has `texts` and `media`, `[entries, width]` each, and in its metadata the entries' texts and
    paths under the same names, as JSON; those that have no embedding are left out.

    Raises:
        OSError: it cannot be written.
    """
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{as_json(embedded)}\n" for embedded in all_embedded), encoding="utf-8")
        return
    import numpy as np
    from safetensors.numpy import save

    tensors, names = {}, {}
    for name, is_text in (("media", False), ("texts", True)):
        side = [
            (embedded.entry.content, embedded.vector)
            for embedded in all_embedded
            if embedded.vector is not None and (embedded.entry.modality == "text") == is_text
        ]
        if side:
            tensors[name] = np.stack([vector for _, vector in side])
            names[name] = _json([content for content, _ in side])
    path.write_bytes(save(tensors, names))


def _json(value: Any) -> str:
    """Return JSON in which only those bytes of a path are escaped that are not UTF-8: `os.fsencode` has them back."""
    return json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace").decode()
