"""How a ColBERT model reads queries and documents, and which of their tokens have a vector.

Knows tokenizers; what a checkpoint says is read by `colbert_files`. Knows no tensor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from corellm.errors import CheckpointError, PromptTooLongError
from corellm_pooling.params import Side

QUERY: Final = "query"
DOCUMENT: Final = "document"
"""The sides, which are also the names of the texts that are put before a prompt's."""


@dataclass(frozen=True)
class Filling:
    """Tokens behind short queries, which have vectors, too."""

    length: int
    """Tokens of a filled query."""
    is_longest: bool
    """Whether no query is longer."""
    token: str | None
    """The token; None for the tokenizer's mask token, or its end-of-text token where there is none."""
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
