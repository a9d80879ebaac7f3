"""The pooling configuration that sentence-transformers writes into a checkpoint: `modules.json` and its folders.

Knows files; reads no weight and imports no torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corellm.errors import CheckpointError
from corellm.worker.checkpoint_files import read_json

_MODES = {"cls_token": "CLS", "cls": "CLS", "lasttoken": "LAST", "mean_tokens": "MEAN", "mean": "MEAN"}


@dataclass(frozen=True)
class StatedPooling:
    """What a checkpoint says about its embeddings."""

    pooling_type: str
    dense: tuple[Path, ...]
    """Folders of projections, in order."""
    normalize: bool


def read_stated_pooling(path: Path) -> StatedPooling | None:
    """Return a checkpoint's pooling configuration; None if it has none.

    Raises:
        CheckpointError: it cannot be read, or asks for what there is not.
    """
    file = path / "modules.json"
    if not file.is_file():
        return None
    modules = _read_modules(file)
    kinds = [kind for kind, _ in modules]
    pooling = [folder for kind, folder in modules if kind == "Pooling"]
    if len(pooling) != 1 or kinds != sorted(kinds, key=("Transformer", "Pooling", "Dense", "Normalize").index):
        raise CheckpointError(
            f"{file}: only Transformer, Pooling, Dense and Normalize, in this order, can be run, not {', '.join(kinds)}"
        )
    dense = tuple(path / folder for kind, folder in modules if kind == "Dense")
    return StatedPooling(_pooling_type(path / pooling[0] / "config.json"), dense, "Normalize" in kinds)


def _read_modules(file: Path) -> list[tuple[str, str]]:
    """Return `(class, folder)` of each module."""
    try:
        listed: Any = json.loads(file.read_text(encoding="utf-8"))
        modules = [(str(module["type"]).rpartition(".")[2], str(module["path"])) for module in listed]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{file}: not a readable list of modules ({error!r}); download it again") from error
    for kind, folder in modules:
        if kind not in ("Transformer", "Pooling", "Dense", "Normalize"):
            raise CheckpointError(f"{file}: the module {kind} cannot be run; set convert='none' or remove it")
        if ".." in Path(folder).parts or Path(folder).is_absolute():
            raise CheckpointError(f"{file}: {folder!r} leaves the checkpoint's directory")
    return modules


def _pooling_type(file: Path) -> str:
    stated = read_json(file)
    prefix = "pooling_mode_"
    modes = [name.removeprefix(prefix) for name, on in stated.items() if name.startswith(prefix) and on is True]
    newer = stated.get("pooling_mode")
    modes += [newer] if isinstance(newer, str) else []
    if len(modes) != 1 or modes[0] not in _MODES:
        raise CheckpointError(
            f"{file}: pooling by {' and '.join(modes) or 'nothing'} cannot be run; one of cls, lasttoken and mean can: "
            f"set pooler_config={{'pooling_type': ...}} and remove modules.json if it is meant"
        )
    return _MODES[modes[0]]
