"""What a ColBERT checkpoint says of queries and documents: how each is read, and which of its tokens have a vector.

Knows the files of those that publish such checkpoints, and tokenizers; knows no tensor.
"""

from __future__ import annotations

import string
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from corellm.errors import CheckpointError, PromptTooLongError
from corellm.pooling_params import Side
from corellm.worker.checkpoint_files import read_json

QUERY: Final = "query"
DOCUMENT: Final = "document"
"""The sides, which are also the names of the texts that are put before a prompt's."""

STANFORD = "HF_ColBERT"
"""Stanford's architecture: an encoder, and a projection among its weights."""
_METADATA = "artifact.metadata"
INLINE_PROJECTION = "linear.weight"
"""The name of its projection."""
_OF_PYLATE = ("query_prefix", "document_prefix", "document_length")
"""What PyLate always writes, and texts cannot be read without."""
_USUAL_LENGTH, _LONGEST_OF_STANFORD = 32, 220
"""Of a query, and of a document of Stanford's, where the checkpoint does not say."""
_SIMILARITIES = (None, "maxsim", "cosine", "dot")
"""Those that are computed, or that tools write which have single vectors in mind."""


@dataclass(frozen=True)
class Filling:
    """Tokens behind short queries, which have vectors, too."""

    length: int
    """Of a filled query."""
    is_longest: bool
    """Whether no query is longer."""
    token: str | None
    """None for the tokenizer's mask, or where it has none its end of a text."""
    is_seen: bool
    """Whether other tokens see it."""


@dataclass(frozen=True)
class LateInteraction:
    """What a checkpoint says, beside its projection."""

    prompts: Mapping[str, str]
    """Texts to put before a text, by side or another name."""
    marks: tuple[str, ...]
    """Beginnings of these texts that are one token each, also where the tokenizer's files do not say so."""
    max_tokens: Mapping[str, int]
    """Most tokens of a text, by side; none for as many as the model takes."""
    filling: Filling | None
    skipped: Mapping[str, tuple[str, ...]]
    """Words whose tokens have no vector, by side."""
    is_inline: bool = False
    """Whether the projection is among the encoder's weights."""


@dataclass(frozen=True)
class TextSide:
    """How queries are read, or documents."""

    name: Side
    max_tokens: int | None
    fill_to: int = 0
    """At most as many as the model takes."""
    fill_token: int = 0

    def filled(self, token_ids: Sequence[int]) -> list[int]:
        """Return a text's tokens, and those that fill it up.

        Raises:
            PromptTooLongError: there are more than such a model was trained for.
        """
        if self.max_tokens is not None and len(token_ids) > self.max_tokens:
            raise PromptTooLongError(
                f"the {self.name} has {len(token_ids)} tokens, and the checkpoint takes {self.max_tokens}; shorten it, "
                "or set truncate_prompt_tokens to -1",
                param="truncate_prompt_tokens",
            )
        return [*token_ids, *[self.fill_token] * (self.fill_to - len(token_ids))]


# --- files ----------------------------------------------------------------------------------------------------------


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


# --- the tokenizer --------------------------------------------------------------------------------------------------


def text_sides(late: LateInteraction, tokenizer: Any, max_model_len: int) -> dict[str, TextSide]:
    """Return how each side is read; the tokenizer reads a mark as one token from then on.

    Args:
        late: what the checkpoint says.
        tokenizer: of the checkpoint.
        max_model_len: the longest prompt.

    Raises:
        CheckpointError: there is no token to fill queries with, or no place for so many; or the tokenizer puts nothing
            before a text, where marks come second.
    """
    if late.filling is not None and late.filling.length > max_model_len:
        raise CheckpointError(
            f"queries are filled up to {late.filling.length} tokens, and the model takes {max_model_len}; raise "
            "max_model_len if the model has the positions"
        )
    _read_whole(late.marks, tokenizer)
    names: tuple[Side, ...] = (QUERY, DOCUMENT)
    sides: dict[str, TextSide] = {side: TextSide(side, late.max_tokens.get(side)) for side in names}
    if late.filling is not None:
        length, token = late.filling.length, _fill_token(late.filling, tokenizer)
        sides[QUERY] = TextSide(QUERY, late.max_tokens.get(QUERY), length, token)
    return sides


def skipped_ids(late: LateInteraction, tokenizer: Any) -> dict[str, frozenset[int]]:
    """Return the tokens that have no vector, by side; words that are no single token of the vocabulary have none.

    Raises:
        CheckpointError: special tokens are among them, so that a text could be left without any vector.
    """
    special = set(tokenizer.all_special_ids)
    found: dict[str, frozenset[int]] = {}
    for side, words in late.skipped.items():
        ids = {token for word in words if (token := _known_id(word, tokenizer)) is not None}
        if ids & special:
            names = ", ".join(map(repr, tokenizer.convert_ids_to_tokens(sorted(ids & special))))
            raise CheckpointError(f"skiplist_words has {names}, which every text has; take it out of the list")
        found[side] = frozenset(ids)
    return found


def _fill_token(filling: Filling, tokenizer: Any) -> int:
    if filling.token is not None:
        token = _known_id(filling.token, tokenizer)
    else:
        token = tokenizer.mask_token_id if tokenizer.mask_token_id is not None else tokenizer.eos_token_id
    if token is None:
        named = repr(filling.token) if filling.token is not None else "a mask or end-of-text token"
        raise CheckpointError(f"queries are to be filled up with {named}, which the tokenizer does not have")
    return int(token)


def _known_id(word: str, tokenizer: Any) -> int | None:
    token: int | None = tokenizer.convert_tokens_to_ids(word)
    return None if token == tokenizer.unk_token_id and word != tokenizer.unk_token else token


def _read_whole(marks: Collection[str], tokenizer: Any) -> None:
    """Let a tokenizer read marks as one token each, if it has one for them: models were trained on that token."""
    from tokenizers import AddedToken

    if any(marks) and tokenizer("a")["input_ids"][:1] == tokenizer("a", add_special_tokens=False)["input_ids"][:1]:
        raise CheckpointError(
            "a query and a document have a mark behind the token that begins texts, and the tokenizer begins none; run "
            "the checkpoint with PyLate"
        )
    known = tokenizer.get_vocab()
    for mark in marks:
        names = [name for name in (mark, *mark.split(None, 1)[:1]) if name.strip() and name in known]
        if names and tokenizer.tokenize(names[0]) != [names[0]]:
            tokenizer.add_tokens([AddedToken(names[0], normalized=False, special=True)], special_tokens=True)
