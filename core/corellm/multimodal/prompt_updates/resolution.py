"""From an adapter's declaration to token ids and an embed mask for one item, and names for messages.

Calls the adapter's functions, tokenizes, and checks all that needs no prompt. Token sequences are also kept as strings
with one character per token, because `str` searches faster than lists.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import compress
from typing import Any, Literal

from corellm.errors import ContractError
from corellm.multimodal.inputs import PlaceholderRange
from corellm.multimodal.prompt_updates.updates import (
    PromptIndexTarget,
    PromptReplacement,
    PromptSeq,
    PromptUpdate,
    PromptUpdateDetails,
    UpdateTarget,
)

Tokenize = Callable[[str], Sequence[int]]
_UTF_32 = "utf-32-le" if sys.byteorder == "little" else "utf-32-be"
_NOUNS = {"image": "image", "video": "video", "audio": "audio item"}


@dataclass(frozen=True)
class Target:
    """Where an update applies."""

    kind: Literal["tokens", "start", "prefix", "end"]
    chars: str = ""
    """The tokens to find, or the prefix."""
    declared: PromptSeq = field(default=(), compare=False)
    """These tokens as the adapter gave them: text or ids."""

    @property
    def label(self) -> str:
        """The tokens for a message: `'<image>' (token 32000)`."""
        ids = ", ".join(str(ord(c)) for c in self.chars[:4])
        more = f", ... ({len(self.chars)} of them)" if len(self.chars) > 4 else ""
        tokens = f"{'token' if len(self.chars) == 1 else 'tokens'} {ids}{more}"
        return f"{_short(self.declared)} ({tokens})" if isinstance(self.declared, str) else tokens


@dataclass(frozen=True)
class Content:
    """What an update puts into the prompt."""

    token_ids: tuple[int, ...]
    chars: str
    is_embed: tuple[bool, ...] | None
    """None if every token takes an embedding."""
    embed_chars: frozenset[str]
    """The distinct tokens that take an embedding."""
    num_embeds: int
    num_states: int | None = None
    """`num_embeds` where embeddings are states; None where tokens take them."""

    @property
    def tokens_embed(self) -> bool:
        """Whether tokens take the embeddings."""
        return self.num_states is None

    def at(self, offset: int) -> PlaceholderRange:
        """The placeholder that it is at a position."""
        return PlaceholderRange(offset, len(self.token_ids), self.is_embed, self.num_states)


@dataclass(frozen=True)
class ResolvedUpdate:
    """One update for one item."""

    modality: str
    item: int
    replaces: bool
    target: Target
    content: Content

    @property
    def claims(self) -> str:
        """The target's tokens, which the content replaces; empty for insertions."""
        return self.target.chars if self.replaces and self.target.kind == "tokens" else ""

    @property
    def place(self) -> tuple[bool, Target]:
        """Equal for two updates that look for their place in the same way."""
        return (self.replaces, self.target)


class NoEmbeddingError(ContractError):
    """An item's placeholder takes no embedding.

    Args:
        where: the hook and the item.
        num_tokens: length of the placeholder.
        modality, item: the item's.
    """

    def __init__(self, where: str, num_tokens: int, modality: str, item: int) -> None:
        check = "their number; an item too small for one is refused in call_hf_processor"
        if num_tokens:
            check = "what is_embed or select_* picks"
        super().__init__(
            f"{where}: none of the content's {num_tokens} tokens takes an embedding; a placeholder needs at least one, "
            f"so check {check}"
        )
        self.modality, self.item = modality, item


def noun(modality: str) -> str:
    """Name of one item in messages."""
    return _NOUNS.get(modality, modality)


def name_items(modality: str, count: int) -> str:
    """`1 image`, `2 audio items`."""
    return f"{count} {noun(modality)}{'' if count == 1 else 's'}"


def as_chars(token_ids: Iterable[int]) -> str:
    """One character per token.

    Raises:
        ValueError, TypeError, OverflowError: something that is not a token id, or one beyond any vocabulary (0x10FFFF).
    """
    return array("I", iter(token_ids)).tobytes().decode(_UTF_32, "surrogatepass")


def as_token_ids(chars: str) -> list[int]:
    """Token ids of `as_chars`' characters."""
    return array("I", chars.encode(_UTF_32, "surrogatepass")).tolist()


class PromptResolver:
    """Resolves a request's updates; caches what does not depend on the item."""

    def __init__(self, tokenize: Tokenize) -> None:
        self._tokenize = tokenize
        self._texts: dict[str, str] = {}
        """Results of `_chars` by text."""
        self._fixed_targets: dict[int, Target] = {}
        self._fixed_contents: dict[int, Content] = {}
        """Contents that do not depend on the item, by the identity of their update, which the caller keeps alive."""

    def alternatives(
        self, updates: Sequence[PromptUpdate], counts: Mapping[str, int], modalities: Iterable[str]
    ) -> dict[tuple[str, int], list[ResolvedUpdate]]:
        """The updates of each item, keyed `(modality, item)`; modalities in the order of `updates`, then items.

        Raises:
            ContractError: an update of an unknown type or modality, or an item without one.
        """
        by_modality: dict[str, list[PromptUpdate]] = {}
        known = {*counts, *modalities, *_NOUNS}
        for update in updates:
            if not isinstance(update, PromptUpdate):
                raise ContractError(
                    f"get_prompt_updates returned {update!r}, which is neither PromptReplacement nor PromptInsertion"
                )
            if update.modality not in known:
                raise ContractError(
                    f"get_prompt_updates returned an update for the modality {update.modality!r}; known are "
                    f"{', '.join(sorted(known))}"
                )
            by_modality.setdefault(update.modality, []).append(update)
        for modality, count in counts.items():
            if count and modality not in by_modality:
                raise ContractError(
                    f"get_prompt_updates returned no update for {modality} 0 of {name_items(modality, count)}; return "
                    f"a PromptReplacement or PromptInsertion with modality={modality!r}"
                )
        return {
            (modality, item): [self.resolve(update, item) for update in group]
            for modality, group in by_modality.items()
            for item in range(counts.get(modality, 0))
        }

    def resolve(self, update: PromptUpdate, item: int) -> ResolvedUpdate:
        """What `update` means for one item.

        Raises:
            ContractError: it means nothing, or no embedding for the item (`NoEmbeddingError`).
        """
        where = f"get_prompt_updates, {update.modality} {item}"
        target, content = self._target(update, item, where), self._content(update, item, where)
        if not content.num_embeds:
            raise NoEmbeddingError(where, len(content.token_ids), update.modality, item)
        return ResolvedUpdate(update.modality, item, isinstance(update, PromptReplacement), target, content)

    def fixed_target(self, update: PromptUpdate) -> Target | None:
        """The target of an update that has the same one for every item; None if it depends on the item."""
        if callable(update.target):
            return None
        return self._target(update, 0, f"get_prompt_updates, {update.modality}")

    def _target(self, update: PromptUpdate, item: int, where: str) -> Target:
        if callable(update.target):
            return self._make_target(update.target(item), where)
        if id(update) not in self._fixed_targets:
            self._fixed_targets[id(update)] = self._make_target(update.target, where)
        return self._fixed_targets[id(update)]

    def _make_target(self, declared: UpdateTarget, where: str) -> Target:
        if isinstance(declared, PromptIndexTarget):
            if declared.kind != "prefix":
                return Target(declared.kind)
            return Target("prefix", self._chars(declared.prefix, where, "the prefix"), declared.prefix)
        chars = self._chars(declared, where, "the target")
        if not chars:
            raise ContractError(
                f"{where}: the target {declared!r} has no tokens; for a position use PromptIndexTargets.start() or "
                f".end()"
            )
        return Target("tokens", chars, declared)

    def _content(self, update: PromptUpdate, item: int, where: str) -> Content:
        if callable(update.content):
            return self._make_content(update.content(item), where)
        if id(update) not in self._fixed_contents:
            self._fixed_contents[id(update)] = self._make_content(update.content, where)
        return self._fixed_contents[id(update)]

    def _make_content(self, declared: Any, where: str) -> Content:
        details = declared if isinstance(declared, PromptUpdateDetails) else None
        chars = self._chars(details.full if details else declared, where, "the content")
        content = _content_of(chars, self._mask(details, chars, where) if details else None)
        if details is None or details.num_states is None:
            return content
        return replace(content, num_embeds=details.num_states, num_states=details.num_states)

    def _mask(self, details: PromptUpdateDetails, chars: str, where: str) -> tuple[bool, ...]:
        if details.is_embed is not None:
            if len(details.is_embed) != len(chars):
                raise ContractError(
                    f"{where}: is_embed has {len(details.is_embed)} flags for a content of {len(chars)} tokens; give "
                    f"one per token"
                )
            return tuple(details.is_embed)
        if details.embed_token_ids is not None:
            return tuple(ord(c) in details.embed_token_ids for c in chars)
        if details.embed_text is None:
            return (True,) * len(chars)
        wanted = self._chars(details.embed_text, where, "embed_text")
        mask = [False] * len(chars)
        start = chars.find(wanted) if wanted else -1
        while start >= 0:
            mask[start : start + len(wanted)] = [True] * len(wanted)
            start = chars.find(wanted, start + len(wanted))
        return tuple(mask)

    def _chars(self, seq: Any, where: str, what: str) -> str:
        try:
            if not isinstance(seq, str):
                return as_chars(seq)
            if seq not in self._texts:
                self._texts[seq] = as_chars(self._tokenize(seq))
            return self._texts[seq]
        except (TypeError, ValueError, OverflowError) as error:
            raise ContractError(
                f"{where}: {what} must be text or token ids"
                f"{' or PromptUpdateDetails' if what == 'the content' else ''}, got {_short(seq)}"
            ) from error


@lru_cache(maxsize=64)
def _content_of(chars: str, mask: tuple[bool, ...] | None) -> Content:
    """Content of these tokens, where those of `mask`, or all, take embeddings. Cached: adapters often give hundreds of
    one token.
    """
    token_ids = tuple(as_token_ids(chars))
    if mask is None or all(mask):
        return Content(token_ids, chars, None, frozenset(chars), len(chars))
    return Content(token_ids, chars, mask, frozenset(compress(chars, mask)), sum(mask))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."
