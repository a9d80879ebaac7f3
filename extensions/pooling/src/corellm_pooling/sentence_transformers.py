"""What sentence-transformers writes into a checkpoint: `modules.json` and its folders, the longest text, prompts.

Knows files; reads no weight and imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corellm.errors import CheckpointError
from corellm.modelling.checkpoint_files import read_json
from corellm_pooling.colbert_files import is_stanford, length_of, of_pylate, of_sentence_transformers, of_stanford
from corellm_pooling.late_interaction import DOCUMENT, QUERY, LateInteraction

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
    """Most tokens of a text; None if the checkpoint does not say."""
    lowers_case: bool
    """Whether texts are lowered before they are tokenized."""
    prompts: Mapping[str, str]
    """Texts to put before a text, by name."""
    default_prompt: str | None
    """The name of the one to use where a request names none."""
    late: LateInteraction | None = None
    """What a ColBERT checkpoint states, in any of the published layouts; None for other models."""


def read_stated_pooling(path: Path) -> StatedPooling | None:
    """Return a checkpoint's pooling configuration; None if it has none.

    Raises:
        CheckpointError: it cannot be read, or asks for what there is not.
    """
    file = path / "modules.json"
    if not file.is_file():
        return _of_tokens(of_stanford(path)) if is_stanford(path) else None
    modules = _read_modules(file)
    kinds = [kind for kind, _ in modules]
    if kinds == ["Transformer"]:  # as of cross-encoders
        return None
    texts = next((read_json(found) for found in sorted(path.glob("sentence_*_config.json"))), {})
    named = path / "config_sentence_transformers.json"
    stated = read_json(named) if named.is_file() else {}
    dense = tuple(path / folder for kind, folder in modules if kind == "Dense")
    masks = [path / folder / "config.json" for kind, folder in modules if kind == "MultiVectorMask"]
    if masks:
        _check_order(file, kinds, ("Transformer", "Dense", "MultiVectorMask", "Normalize"))
    if masks or kinds == ["Transformer", *["Dense"] * len(dense)]:
        late = of_sentence_transformers(named, stated, texts, masks[0]) if masks else of_pylate(named, stated)
        return _of_tokens(
            late,
            dense=dense,
            normalize=not masks or "Normalize" in kinds,
            max_seq_length=length_of(texts, "max_seq_length", named.with_name("sentence_bert_config.json")),
            lowers_case=bool(texts.get("do_lower_case")),
            default_prompt=_default_prompt(named, stated, late.prompts),
        )
    pooling = [folder for kind, folder in modules if kind == "Pooling"]
    _check_order(file, kinds, ("Transformer", "Pooling", "Dense", "Normalize"))
    prompts = stated.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise CheckpointError(f"{named}: prompts must be texts by name; correct them")
    default = _default_prompt(named, stated, prompts)
    pooled = read_json(path / pooling[0] / "config.json")
    if pooled.get("include_prompt") is False and any(prompts.values()):
        raise CheckpointError(
            f"{path / pooling[0] / 'config.json'}: include_prompt=false leaves prompts out of pooling, which corellm "
            "does not; set it to true if that is meant"
        )
    return StatedPooling(
        pooling_types=_pooling_types(path / pooling[0] / "config.json", pooled),
        dense=dense,
        normalize="Normalize" in kinds,
        max_seq_length=texts.get("max_seq_length"),
        lowers_case=bool(texts.get("do_lower_case")),
        prompts=prompts,
        default_prompt=default,
    )


def _of_tokens(
    late: LateInteraction,
    *,
    dense: tuple[Path, ...] = (),
    normalize: bool = True,
    max_seq_length: int | None = None,
    lowers_case: bool = False,
    default_prompt: str | None = None,
) -> StatedPooling:
    """Return the configuration of a model that has vectors of tokens; the longest text is that of either side."""
    longest = [late.max_tokens.get(side, max_seq_length) for side in (QUERY, DOCUMENT)]
    known = [length for length in longest if length is not None]
    most = max(known) if len(known) == len(longest) else None
    return StatedPooling((), dense, normalize, most, lowers_case, late.prompts, default_prompt, late)


def _check_order(file: Path, kinds: Sequence[str], known: Sequence[str]) -> None:
    """Refuse modules that do not come in one order, or not once."""
    once = [kind for kind in known if kind not in ("Dense", "Normalize") and kinds.count(kind) != 1]
    if once or set(kinds) - set(known) or list(kinds) != sorted(kinds, key=known.index):
        raise CheckpointError(
            f"{file}: only {', '.join(known[:-1])} and {known[-1]}, in this order, can be run, not {', '.join(kinds)}"
        )


def _default_prompt(file: Path, stated: Mapping[str, Any], prompts: Mapping[str, str]) -> str | None:
    default: str | None = stated.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise CheckpointError(f"{file}: default_prompt_name is {default!r:.100}, which prompts do not have; correct it")
    return default


def _read_modules(file: Path) -> list[tuple[str, str]]:
    """Return `(class, folder)` of each module."""
    try:
        listed: Any = json.loads(file.read_text(encoding="utf-8"))
        modules = [(str(module["type"]).rpartition(".")[2], str(module["path"])) for module in listed]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{file}: not a readable list of modules ({error!r}); download it again") from error
    for kind, folder in modules:
        if kind not in ("Transformer", "Pooling", "Dense", "Normalize", "MultiVectorMask"):
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
