"""Checks that a checkpoint's files are complete and readable, without torch and without reading weights.

Knows file names and formats of the Hugging Face layout; knows no model, so not which weights it needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from corellm.errors import CheckpointError

_JSON_FILES = (
    "generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json",
)  # fmt: skip
_LARGE_JSON_FILES = ("tokenizer.json", "vocab.json")
"""Files that only the library that needs them parses: of these the ends alone are looked at."""
_OTHER_FILES = ("tokenizer.model", "*.tiktoken", "merges.txt", "*.jinja")
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_POINTER = b"version https://git-lfs.github.com/spec/v1"


def check_files(path: Path, *, weights: bool = True) -> None:
    """Raise if a configuration, tokenizer or weight file is broken; an absent file is not an error here.

    Args:
        path: the checkpoint's directory.
        weights: whether the weights are needed.

    Raises:
        CheckpointError: which file, what is wrong with it, and the way out.
    """
    for name in _JSON_FILES:
        if (path / name).is_file():
            read_json(path / name)
    for name in _LARGE_JSON_FILES:
        if (path / name).is_file():
            _check_ends(path / name)
    for pattern in _OTHER_FILES:
        for file in path.glob(pattern):
            _refuse_pointer(file)
    if weights:
        _check_weights(path)


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        CheckpointError: it cannot be read, or holds something else.
    """
    _refuse_pointer(file)
    try:
        stated = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not a readable JSON object ({error}); download it again") from error
    if not isinstance(stated, dict):
        raise CheckpointError(f"{file}: not a JSON object but a {type(stated).__name__}; download it again")
    return stated


def _check_ends(file: Path) -> None:
    _refuse_pointer(file)
    with file.open("rb") as opened:
        first = opened.read(64).lstrip()[:1]
        opened.seek(max(0, file.stat().st_size - 64))
        last = opened.read().rstrip()[-1:]
    if (first, last) != (b"{", b"}"):
        raise CheckpointError(f"{file}: not a readable JSON object (its end is missing); download it again")


def _refuse_pointer(file: Path) -> None:
    """Raise if a file cannot be read, or is the pointer that Git leaves if Git LFS did not download the file."""
    try:
        with file.open("rb") as opened:
            start = opened.read(len(_POINTER))
    except OSError as error:  # such as a link into a cache whose files were deleted
        raise CheckpointError(f"{file} cannot be read ({error.strerror}); download it again") from error
    if start == _POINTER:
        raise CheckpointError(
            f"{file} is a Git LFS pointer, not the file itself; run `git lfs install` and `git lfs pull` in "
            f"{file.parent}, or download the checkpoint with `hf download`"
        )


# --- weights --------------------------------------------------------------------------------------------------------


def _check_weights(path: Path) -> None:
    """Raise if a file of weights has a broken header, lacks bytes, or lacks a tensor that the index names."""
    index = path / _INDEX
    expected = _weight_map(index) if index.is_file() else {}
    held = {file.name: _tensor_names(file) for file in _weight_files(path, expected)}
    for tensor, name in expected.items():
        if tensor not in held[name]:
            raise CheckpointError(
                f"{path / name} lacks {tensor}, which {_INDEX} says it holds; the files are of different checkpoints, "
                f"download them again"
            )


def require_weights(path: Path) -> None:
    """Raise if there are no safetensors, or none by the names that transformers reads.

    Raises:
        CheckpointError: what there is instead, and the way out.
    """
    files = sorted(file.name for file in path.glob("*.safetensors"))
    if any((path / name).is_file() for name in (_SINGLE, _INDEX)) and files:
        return
    if files:
        reason = f"it has {files[0]}, but neither {_SINGLE} nor {_INDEX}, which says what is in which file"
        way_out = "download all files"
    elif any(path.glob("*.bin")) or any(path.glob("*.pt*")):
        reason = "it has no *.safetensors; its weights are pickles, which can run code and are not loaded"
        way_out = (
            "take a revision with safetensors, or convert them (transformers: load the model once, then "
            "save_pretrained)"
        )
    else:
        reason, way_out = "it has no *.safetensors", "download all files"
    raise CheckpointError(f"{path}: the weights cannot be loaded: {reason}: {way_out}")


def _weight_map(index: Path) -> Mapping[str, str]:
    expected = read_json(index).get("weight_map")
    if not isinstance(expected, dict) or not all(isinstance(name, str) for name in expected.values()):
        raise CheckpointError(f"{index}: not a readable index of weights (no weight_map); download it again")
    return expected


def _weight_files(path: Path, expected: Mapping[str, str]) -> Iterator[Path]:
    """Return the files to read: those the index names, else the one with the usual name, else all."""
    for name in sorted(set(expected.values())):
        if not (path / name).is_file():
            raise CheckpointError(f"{path} lacks {name}, which {_INDEX} names; download all files")
        yield path / name
    if not expected:
        single = path / _SINGLE
        yield from [single] if single.is_file() else sorted(path.glob("*.safetensors"))


def _tensor_names(file: Path) -> frozenset[str]:
    """The names in a file's header, which the library compares with the file's size, offsets, shapes and types."""
    from safetensors import SafetensorError, safe_open

    _refuse_pointer(file)
    try:
        with safe_open(file, framework="np") as opened:
            return frozenset(opened.keys())
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{file}: the weights cannot be read: {error}; the file ({file.stat().st_size} bytes) is truncated or "
            f"damaged, download it again"
        ) from error
