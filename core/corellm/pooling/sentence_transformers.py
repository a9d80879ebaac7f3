"""What sentence-transformers writes into a checkpoint: `modules.json` and its folders, the longest text, prompts.

Knows files; reads no weight and imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corellm.errors import CheckpointError
from corellm.worker.checkpoint_files import read_json

_MODES = {
    "cls": "CLS",
    "max": "MAX",
    "mean": "MEAN",
    "mean_sqrt_len_tokens": "MEAN_SQRT",
    "weightedmean": "WEIGHTED",
    "lasttoken": "LAST",
}
"""Names of today, in the order in which several are joined."""


@dataclass(frozen=True)
class StatedPooling:
    """What a checkpoint says about its embeddings."""

    pooling_types: tuple[str, ...]
    """Several are joined to one vector."""
    dense: tuple[Path, ...]
    """Folders of projections, in order."""
    normalize: bool
    max_seq_length: int | None
    """Of the texts it was trained on."""
    lowers_case: bool
    """Whether texts are lowered before they are tokenized."""
    prompts: Mapping[str, str]
    """Texts to put before a text, by name."""
    default_prompt: str | None
    """The name of the one to use where a request names none."""


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
    if kinds == ["Transformer"]:  # as of cross-encoders
        return None
    if kinds[:1] == ["Transformer"] and "Dense" in kinds and "Pooling" not in kinds:
        raise CheckpointError(
            f"{file}: a model of one vector for each token (ColBERT, as PyLate writes it), whose marks of queries and "
            "documents corellm does not add; run it with PyLate or sentence-transformers (MultiVectorEncoder)"
        )
    pooling = [folder for kind, folder in modules if kind == "Pooling"]
    if len(pooling) != 1 or kinds != sorted(kinds, key=("Transformer", "Pooling", "Dense", "Normalize").index):
        raise CheckpointError(
            f"{file}: only Transformer, Pooling, Dense and Normalize, in this order, can be run, not {', '.join(kinds)}"
        )
    texts = next((read_json(found) for found in sorted(path.glob("sentence_*_config.json"))), {})
    named = path / "config_sentence_transformers.json"
    stated = read_json(named) if named.is_file() else {}
    prompts, default = stated.get("prompts") or {}, stated.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise CheckpointError(f"{named}: prompts must be texts by name; correct them")
    if default is not None and default not in prompts:
        raise CheckpointError(
            f"{named}: default_prompt_name is {default!r:.100}, which prompts do not have; correct it"
        )
    pooled = read_json(path / pooling[0] / "config.json")
    if pooled.get("include_prompt") is False and any(prompts.values()):
        raise CheckpointError(
            f"{path / pooling[0] / 'config.json'}: include_prompt=false leaves prompts out of pooling, which corellm "
            "does not; set it to true if that is meant"
        )
    return StatedPooling(
        pooling_types=_pooling_types(path / pooling[0] / "config.json", pooled),
        dense=tuple(path / folder for kind, folder in modules if kind == "Dense"),
        normalize="Normalize" in kinds,
        max_seq_length=texts.get("max_seq_length"),
        lowers_case=bool(texts.get("do_lower_case")),
        prompts=prompts,
        default_prompt=default,
    )


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


def _pooling_types(file: Path, stated: Mapping[str, Any]) -> tuple[str, ...]:
    """Return how a checkpoint pools, given by one name or several, or by a switch for each in older files."""
    prefix = "pooling_mode_"
    given = stated.get("pooling_mode")
    if given is None:
        switched = {name.removeprefix(prefix) for name, on in stated.items() if name.startswith(prefix) and on is True}
        older = {name: f"{name}_tokens" if name in ("max", "mean", "weightedmean") else name for name in _MODES}
        older["cls"] = "cls_token"
        given = [name for name in _MODES if older[name] in switched] + sorted(switched - set(older.values()))
    modes = [given] if isinstance(given, str) else list(given) or ["mean"]
    unknown = [str(mode) for mode in modes if mode not in _MODES]
    if unknown:
        raise CheckpointError(
            f"{file}: pooling by {' and '.join(unknown)} cannot be run; {', '.join(_MODES)} can: set "
            "pooler_config={'pooling_type': ...} and remove modules.json if it is meant"
        )
    return tuple(_MODES[mode] for mode in modes)
