"""What an adapter returns from `get_prompt_updates`: declarations, in token ids or text.

Knows no tokenizer and no prompt. Text is tokenized later, once, without special tokens being added to it; a special
token written out in it, such as `<image>`, becomes its id.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import index as as_int
from typing import Literal, TypeAlias

from corellm.errors import ContractError

PromptSeq: TypeAlias = str | Sequence[int]
"""Text, or token ids."""


@dataclass(frozen=True)
class PromptIndexTarget:
    """A position in the prompt, not tokens to find in it. Made by `PromptIndexTargets`."""

    kind: Literal["start", "prefix", "end"]
    prefix: PromptSeq = ()


class PromptIndexTargets:
    """Positions that an update can name as its target."""

    @staticmethod
    def start() -> PromptIndexTarget:
        """Before the first token, also of an empty prompt."""
        return PromptIndexTarget("start")

    @staticmethod
    def prefix(seq: PromptSeq) -> PromptIndexTarget:
        """After `seq`, with which the prompt has to begin; an empty `seq` is the start.

        A prompt that begins otherwise does not match: the next update of the modality is tried, so
        `[PromptInsertion("image", PromptIndexTargets.prefix([bos]), ...), PromptInsertion("image",
        PromptIndexTargets.start(), ...)]` inserts after BOS if there is one.
        """
        return PromptIndexTarget("prefix", seq)

    @staticmethod
    def end() -> PromptIndexTarget:
        """After the last token, also of an empty prompt."""
        return PromptIndexTarget("end")


@dataclass(frozen=True)
class PromptUpdateDetails:
    """What an update puts into the prompt, and which of its tokens take embeddings.

    At most one of the three ways to say which is given; none means every token. The `select_*` methods are the usual
    way to make one. Example, an image between two tokens that take no embedding:
    `PromptUpdateDetails.select_token_id([start, *[pad] * 64, end], embed_token_id=pad)`.

    Or no token takes one: a decoder may attend to an item's embeddings instead, as states (`get_visible_states`).
    Example, an image of 1601 states, which stands in the prompt as one token: `PromptUpdateDetails([image],
    num_states=1601)`.

    Raises:
        ContractError: `is_embed` is not a flag per token, several ways are given, or `num_states` is no number of
            states.
    """

    full: PromptSeq
    is_embed: Sequence[bool] | None = None
    """A flag per token of `full`."""
    embed_token_ids: Collection[int] | None = None
    """Tokens with these ids."""
    embed_text: str | None = None
    """The tokens of this text, wherever they stand in `full` in this order."""
    num_states: int | None = None
    """How many embeddings the item has, where they are states."""

    def __post_init__(self) -> None:
        if sum(way is not None for way in (self.is_embed, self.embed_token_ids, self.embed_text)) > 1:
            raise ContractError(
                "PromptUpdateDetails: give one of is_embed, embed_token_ids and embed_text, or none if every token "
                "takes an embedding"
            )
        if self.num_states is not None and not (isinstance(self.num_states, int) and self.num_states > 0):
            raise ContractError(f"PromptUpdateDetails: num_states must be one or more, got {self.num_states!r}")
        # Plain tuples: picklable, hashable, and not shared with the caller.
        if not isinstance(self.full, str):
            object.__setattr__(self, "full", tuple(self.full))
        if self.is_embed is not None:
            object.__setattr__(self, "is_embed", _flags(self.is_embed))
        elif self.embed_token_ids is not None:
            wanted = frozenset(map(as_int, self.embed_token_ids))
            object.__setattr__(self, "embed_token_ids", wanted)
            if not isinstance(self.full, str):
                object.__setattr__(self, "is_embed", _are_in(self.full, wanted))
                object.__setattr__(self, "embed_token_ids", None)

    @staticmethod
    def from_seq(seq: PromptSeq) -> PromptUpdateDetails:
        """Every token of `seq` takes an embedding."""
        return PromptUpdateDetails(seq)

    @staticmethod
    def select_token_id(seq: PromptSeq, embed_token_id: int) -> PromptUpdateDetails:
        """The tokens of `seq` with this id take an embedding."""
        return PromptUpdateDetails(seq, embed_token_ids=(embed_token_id,))

    @staticmethod
    def select_token_ids(seq: PromptSeq, embed_token_ids: Collection[int]) -> PromptUpdateDetails:
        """The tokens of `seq` with one of these ids take an embedding."""
        return PromptUpdateDetails(seq, embed_token_ids=embed_token_ids)

    @staticmethod
    def select_text(seq: PromptSeq, embed_text: str) -> PromptUpdateDetails:
        """The tokens of `embed_text` take an embedding, wherever they stand in `seq` in this order.

        Example: `select_text("<image>" * 576 + "</image>", "<image>")`.
        """
        return PromptUpdateDetails(seq, embed_text=embed_text)


@lru_cache(maxsize=64)
def _are_in(token_ids: tuple[int, ...], wanted: frozenset[int]) -> tuple[bool, ...]:
    """Flags of the tokens that are wanted. Cached: images of one size have the same tokens."""
    return tuple(token in wanted for token in token_ids)


def _flags(values: Sequence[bool]) -> tuple[bool, ...]:
    flags = tuple(values.tolist() if hasattr(values, "tolist") else values)
    if not all(flag in (0, 1) for flag in flags):
        raise ContractError(f"PromptUpdateDetails: is_embed must be one True or False per token, got {values!r}")
    return tuple(map(bool, flags))


UpdateTarget: TypeAlias = PromptSeq | PromptIndexTarget
UpdateContent: TypeAlias = PromptSeq | PromptUpdateDetails


@dataclass(frozen=True)
class PromptUpdate(ABC):
    """How the placeholder of one modality's items gets into the prompt.

    If several updates are given for a modality they are alternatives: for each item, the first whose target is found
    is used. Items that offer the same targets are bound in prompt order: item 1 is never placed before item 0.
    """

    modality: str
    target: UpdateTarget | Callable[[int], UpdateTarget]
    """Where: token ids, text or a position; or a function of the item's index that returns one of them."""

    @property
    @abstractmethod
    def content(self) -> UpdateContent | Callable[[int], UpdateContent]:
        """What is put there: token ids, text or `PromptUpdateDetails`; or a function of the item's index."""


@dataclass(frozen=True)
class PromptReplacement(PromptUpdate):
    """The target stands for one item wherever it occurs, and is replaced.

    The prompt is read once from left to right; where several targets match, the longest does. The items take the
    occurrences of their target in order, each occurrence once. One that is left over is an error. At a position
    (`PromptIndexTargets`) there is nothing to replace: the content is inserted, as `PromptInsertion` does.

    Example: every `<image>` becomes as many as its image has patches. With `patches = [2, 3]`,
    `<image> or <image> ?` becomes `<image> <image> or <image> <image> <image> ?`:

        PromptReplacement("image", target="<image>", replacement=lambda i: [image_token] * patches[i])
    """

    replacement: UpdateContent | Callable[[int], UpdateContent] = field(repr=False)

    @property
    def content(self) -> UpdateContent | Callable[[int], UpdateContent]:
        """The replacement."""
        return self.replacement


@dataclass(frozen=True)
class PromptInsertion(PromptUpdate):
    """The content is inserted right after the first occurrence of the target, which stays.

    The target is a landmark, not a placeholder: it may occur again, and all items that name the same one are inserted
    there, in item order; updates of several modalities, in the order the updates are given. Where each occurrence
    stands for an item of its own, use `PromptReplacement` and repeat the target in the replacement.

    Example: two images of 3 tokens each turn `<s> Hello` into `x x x x x x <s> Hello`:

        PromptInsertion("image", target=PromptIndexTargets.start(), insertion=[x] * 3)
    """

    insertion: UpdateContent | Callable[[int], UpdateContent] = field(repr=False)

    @property
    def content(self) -> UpdateContent | Callable[[int], UpdateContent]:
        """The insertion."""
        return self.insertion
