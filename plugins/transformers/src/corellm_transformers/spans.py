"""Which of a prompt's tokens see each other: found at load, in the masks that a model makes for the prompts of a check.

Knows masks; knows no model family.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from corellm.multimodal import embedded_spans

if TYPE_CHECKING:
    from corellm.multimodal import MultiModalFeature


@dataclass(frozen=True)
class Spans:
    """How a model's prompts divide into spans whose tokens see each other."""

    modalities: frozenset[str] = frozenset()
    """Modalities of whose items the tokens with embeddings see each other, row by row."""
    whole: bool = False
    """Whether the whole prompt is one span."""

    def of(self, token_ids: Sequence[int], features: Iterable[MultiModalFeature]) -> list[tuple[int, int]]:
        """Return a prompt's spans `[start, end)`."""
        if self.whole:
            return [(0, len(token_ids))]
        return embedded_spans(feature for feature in features if feature.modality in self.modalities)


def spans_in(seen: Mapping[int, Tensor], places: Mapping[str, Tensor]) -> Spans | None:
    """Return the spans that explain which later tokens a prompt's tokens see; None where none do.

    Args:
        seen: `{layer: [num_tokens, num_tokens]}`, which tokens each token sees.
        places: `{modality: [num_tokens]}`, which tokens take embeddings of its items.
    """
    ahead = {layer: tokens.triu(1) for layer, tokens in seen.items()}
    ahead = {layer: tokens for layer, tokens in ahead.items() if bool(tokens.any())}
    return next((spans for spans in _candidates(places) if _explains(spans, ahead, places)), None)


def _candidates(modalities: Iterable[str]) -> Iterator[Spans]:
    """Yield no spans, those of some modalities, and the whole prompt."""
    names = sorted(modalities)
    for some in chain.from_iterable(combinations(names, count) for count in range(len(names) + 1)):
        yield Spans(frozenset(some))
    yield Spans(whole=True)


def _explains(spans: Spans, ahead: Mapping[int, Tensor], places: Mapping[str, Tensor]) -> bool:
    """Whether layers that see later tokens see those of the same span, and no others."""
    (length,) = {len(mask) for mask in places.values()}
    inside = torch.full((length,), spans.whole)
    for modality in spans.modalities:
        inside |= places[modality].cpu()
    number = (inside.long().diff(prepend=torch.zeros(1, dtype=torch.long)) == 1).cumsum(0)  # rows that meet are one
    same = ((number[:, None] == number) & inside & inside[:, None]).triu(1)
    if not ahead:
        return not bool(same.any())
    return all(torch.equal(tokens.cpu(), same) for tokens in ahead.values())
