"""What the engine knows of a request's items: where each one's placeholder is, and its processed tensors.

No torch here at run time: the scheduler reads placeholders, only the worker looks at the tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corellm.multimodal.fields import MultiModalKwargsItem


@dataclass(frozen=True)
class PlaceholderRange:
    r"""The run of prompt tokens that stands for one item.

    Example: in `<s> USER : <img> x x \n x x \n </img> What`, with `x` the tokens that take embeddings,
    `PlaceholderRange(offset=3, length=8, is_embed=(False, True, True, False, True, True, False, False))`.
    """

    offset: int
    length: int
    is_embed: tuple[bool, ...] | None = None
    """Which of the `length` tokens take an embedding; None for all of them."""
    num_states: int | None = None
    """Embeddings that no token takes: states, to which the decoder attends; None where tokens take embeddings."""

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.offset + self.length

    @cached_property
    def num_embeds(self) -> int:
        """How many embeddings the placeholder takes."""
        if self.num_states is not None:
            return self.num_states
        return self.length if self.is_embed is None else sum(self.is_embed)

    @cached_property
    def _embeds_before(self) -> tuple[int, ...]:
        assert self.is_embed is not None
        return tuple(accumulate(self.is_embed, initial=0))

    def embeds_before(self, position: int) -> int:
        """How many embeddings lie before the prompt position `position` (clamped to the placeholder)."""
        if self.num_states is not None:
            return self.num_states if position > self.offset else 0
        within = min(max(position - self.offset, 0), self.length)
        return within if self.is_embed is None else self._embeds_before[within]


@dataclass(slots=True)
class MultiModalFeature:
    """One processed item of a request."""

    modality: str
    item: int
    """Index of the item within its modality."""
    identifier: str
    """Content hash: equal identifiers mean equal embeddings. Key of every cache."""
    placeholder: PlaceholderRange
    data: MultiModalKwargsItem
    """The item's tensors by name."""
    precomputed: bool = False
    """Whether `data` holds the embeddings themselves, so that no encoder runs."""
    variant: str = ""
    """What its encoder has that the model's own has not, as an extension names it; the identifier tells it apart."""

    def of_variant(self, variant: str) -> MultiModalFeature:
        """Return the item for an encoder of this variant; itself if none runs, or it is the model's own."""
        if self.precomputed or not variant:
            return self
        return replace(self, identifier=f"{self.identifier}-{variant}", variant=variant)


def embedded_spans(features: Iterable[MultiModalFeature]) -> list[tuple[int, int]]:
    """Return `[start, end)` of each row of prompt tokens that take embeddings; rows that meet are one.

    Args:
        features: of a prompt, by placeholder offset.
    """
    spans: list[tuple[int, int]] = []
    for feature in features:
        place = feature.placeholder
        for at in range(place.offset, place.end):
            if place.is_embed is not None and not place.is_embed[at - place.offset]:
                continue
            if spans and spans[-1][1] == at:
                spans[-1] = (spans[-1][0], at + 1)
            else:
                spans.append((at, at + 1))
    return spans
