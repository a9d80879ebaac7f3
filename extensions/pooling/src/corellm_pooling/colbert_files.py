"""What ColBERT checkpoints say of queries and documents, in the files of those that publish them.

PyLate, Stanford's ColBERT and sentence-transformers have a layout each. Knows files; reads no weight.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corellm.errors import CheckpointError
from corellm.modelling.checkpoint_files import read_json
from corellm_pooling.late_interaction import DOCUMENT, QUERY, Filling, LateInteraction

STANFORD = "HF_ColBERT"
"""Stanford's architecture: an encoder, and a projection among its weights."""
_METADATA = "artifact.metadata"
INLINE_PROJECTION = "linear.weight"
"""The name of its projection."""
_OF_PYLATE = ("query_prefix", "document_prefix", "document_length")
"""What PyLate always writes, and texts cannot be read without."""
_USUAL_LENGTH, _LONGEST_OF_STANFORD = 32, 220
"""Most tokens of a query, and of a document of Stanford's, where the checkpoint does not say."""
_SIMILARITIES = (None, "maxsim", "cosine", "dot")
"""Similarities that mean MaxSim here; `cosine` and `dot` are written by tools for models of one vector per text."""


def is_stanford(path: Path) -> bool:
    """Whether a checkpoint has the layout of Stanford's, whatever name it is to be loaded under."""
    if (path / _METADATA).is_file():
        return True
    config = path / "config.json"
    return config.is_file() and STANFORD in (read_json(config).get("architectures") or ())


def of_stanford(path: Path) -> LateInteraction:
    """Return what `artifact.metadata` says, or Stanford's own defaults.

    Raises:
        CheckpointError: it cannot be read, or asks for what there is not.
    """
    file = path / _METADATA
    stated = read_json(file) if file.is_file() else {}
    for name, wanted in (("similarity", "cosine"), ("interaction", "colbert")):
        if stated.get(name, wanted) != wanted:
            raise CheckpointError(f"{file}: {name}={stated[name]!r:.100} cannot be run; only {wanted!r} can")
    prompts = {
        QUERY: f"{stated.get('query_token_id') or '[unused0]'} ",
        DOCUMENT: f"{stated.get('doc_token_id') or '[unused1]'} ",
    }
    longest = {
        QUERY: length_of(stated, "query_maxlen", file),
        DOCUMENT: length_of(stated, "doc_maxlen", file) or _LONGEST_OF_STANFORD,
    }
    filling = Filling(longest[QUERY] or _USUAL_LENGTH, True, None, bool(stated.get("attend_to_mask_tokens")))
    words = tuple(string.punctuation) if stated.get("mask_punctuation", True) else ()
    return LateInteraction(
        prompts, tuple(prompts.values()), _lengths(longest, filling), filling, {DOCUMENT: words}, is_inline=True
    )


def of_pylate(file: Path, stated: Mapping[str, Any]) -> LateInteraction:
    """Return what PyLate writes into `config_sentence_transformers.json`.

    Args:
        file: for errors.
        stated: its content.

    Raises:
        CheckpointError: a value is wrong, or asks for what there is not; or PyLate did not write it.
    """
    if missing := [name for name in _OF_PYLATE if name not in stated]:
        raise CheckpointError(
            f"{file}: a model of one vector for each token (ColBERT) states how texts are read, and this one lacks "
            f"{', '.join(missing)}; save it again with PyLate, or with sentence-transformers"
        )
    _check_similarity(file, stated)
    marks = {side: _text(stated, f"{side}_prefix", file) for side in (QUERY, DOCUMENT)}
    texts = _prompts(file, stated)
    prompts = texts | {side: mark + texts[side].removeprefix(mark) for side, mark in marks.items()}
    longest = {side: length_of(stated, f"{side}_length", file) for side in (QUERY, DOCUMENT)}
    filling = None
    if stated.get("do_query_expansion") is not False:
        is_seen = bool(stated.get("attend_to_expansion_tokens"))
        filling = Filling(longest[QUERY] or _USUAL_LENGTH, True, None, is_seen)
    words = _words(stated, file) if stated.get("skiplist_words") is not None else tuple(string.punctuation)
    return LateInteraction(prompts, tuple(marks.values()), _lengths(longest, filling), filling, {DOCUMENT: words})


def of_sentence_transformers(
    file: Path, stated: Mapping[str, Any], texts: Mapping[str, Any], mask_file: Path
) -> LateInteraction:
    """Return what sentence-transformers' `MultiVectorEncoder` writes.

    Args:
        file, stated: `config_sentence_transformers.json`.
        texts: the content of `sentence_bert_config.json`.
        mask_file: the configuration of its module `MultiVectorMask`.

    Raises:
        CheckpointError: a value is wrong, or asks for what there is not.
    """
    _check_similarity(file, stated)
    mask = read_json(mask_file)
    if mask.get("keep_only_token_ids"):
        raise CheckpointError(f"{mask_file}: keep_only_token_ids, for models that read images, cannot be run")
    sides, words = mask.get("skiplist_tasks") or DOCUMENT, _words(mask, mask_file)
    sides = [sides] if isinstance(sides, str) else sides
    if not isinstance(sides, list) or not all(side in (QUERY, DOCUMENT) for side in sides):
        raise CheckpointError(f"{mask_file}: skiplist_tasks must be of {QUERY}, {DOCUMENT}, not {sides!r:.100}")
    text_file = file.with_name("sentence_bert_config.json")
    longest = {side: length_of(texts, f"{side}_length", text_file) for side in (QUERY, DOCUMENT)}
    filling = _filling(text_file, texts.get("query_expansion"))
    return LateInteraction(_prompts(file, stated), (), _lengths(longest, filling), filling, dict.fromkeys(sides, words))


def _filling(file: Path, stated: Any) -> Filling | None:
    if stated is None:
        return None
    strategy = stated.get("strategy") if isinstance(stated, Mapping) else stated
    if not isinstance(stated, Mapping) or strategy not in ("fixed", "min"):
        raise CheckpointError(f"{file}: query_expansion by {strategy!r:.100} cannot be run; 'fixed' and 'min' can")
    length, token = length_of(stated, "length", file), _text(stated, "token", file) or None
    if length is None:
        raise CheckpointError(f"{file}: query_expansion by {strategy!r} needs a length; correct it")
    return Filling(length, strategy == "fixed", token, stated.get("attend") is True)


def _lengths(longest: Mapping[str, int | None], filling: Filling | None) -> dict[str, int]:
    """Return the most tokens of each side that has such a limit."""
    known = {side: length for side, length in longest.items() if length is not None}
    if filling is not None and filling.is_longest:
        known[QUERY] = filling.length
    return known


def _check_similarity(file: Path, stated: Mapping[str, Any]) -> None:
    name = stated.get("similarity_fn_name")
    if (name.lower() if isinstance(name, str) else name) not in _SIMILARITIES:
        raise CheckpointError(f"{file}: similarity_fn_name={name!r:.100} cannot be run; 'maxsim' can")


def _prompts(file: Path, stated: Mapping[str, Any]) -> dict[str, str]:
    given = stated.get("prompts") or {}
    if not isinstance(given, Mapping) or not all(text is None or isinstance(text, str) for text in given.values()):
        raise CheckpointError(f"{file}: prompts must be texts by name; correct them")
    return {QUERY: "", DOCUMENT: ""} | {str(name): text or "" for name, text in given.items()}


def _text(stated: Mapping[str, Any], name: str, file: Path) -> str:
    value = stated.get(name) or ""
    if not isinstance(value, str):
        raise CheckpointError(f"{file}: {name} must be a text, not {value!r:.100}; correct it")
    return value


def _words(stated: Mapping[str, Any], file: Path) -> tuple[str, ...]:
    words = stated.get("skiplist_words") or []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise CheckpointError(f"{file}: skiplist_words must be a list of words, not {words!r:.100}; correct it")
    return tuple(words)


def length_of(stated: Mapping[str, Any], name: str, file: Path) -> int | None:
    """Return a number of tokens of a configuration, or None.

    Raises:
        CheckpointError: it is no such number.
    """
    value = stated.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise CheckpointError(f"{file}: {name} must be a number of tokens, not {value!r:.100}; correct it")
    return value
