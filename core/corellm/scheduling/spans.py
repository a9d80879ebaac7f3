"""Spans of a prompt whose tokens see each other, in the scheduler: no chunk ever cuts one.

Knows positions; knows neither masks nor tensors.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from corellm.errors import PromptTooLongError
from corellm.scheduling.admission import AdmissionLimits, embeds_of
from corellm.scheduling.batch import ItemSlice
from corellm.scheduling.block_hash import item_keys
from corellm.scheduling.request import Request
from corellm.scheduling.request_part import PlanItems, RequestPart
from corellm.scheduling.step_plan import StepPlan

Span = tuple[int, int]
"""`[start, end)` of a prompt."""


@dataclass(frozen=True, slots=True)
class Spans(RequestPart):
    """The spans of a request's prompt, in order. A chunk has all tokens of a span or none."""

    spans: Sequence[Span]

    def for_worker(self) -> Mapping[str, Any]:
        """Return the spans."""
        return {"spans": self.spans}

    def refusal(self, request: Request, limits: AdmissionLimits) -> PromptTooLongError | None:
        """Return the error for a span that no step can compute whole."""
        for start, end in self.spans:
            if limits.longest_whole is not None and end - start > limits.longest_whole:
                return PromptTooLongError(
                    f"prompt tokens {start} to {end - 1} see each other and are computed in one step, but memory was "
                    f"planned at start for {limits.longest_whole} such tokens, not {end - start}; put text between "
                    "items, or send smaller ones"
                )
            # a span may end within items, whose embeddings it needs whole
            places = ((feature, feature.placeholder) for feature in request.features)
            together = embeds_of(feature for feature, place in places if place.offset < end and place.end > start)
            if together > limits.encoder_capacity:
                return PromptTooLongError(
                    f"the items among prompt tokens {start} to {end - 1} have {together} embeddings together. These "
                    "tokens see each other and are computed in one step, for which the encoder cache must hold all of "
                    f"them and holds {limits.encoder_capacity}; send fewer items, or raise encoder_cache_size"
                )
        return None

    def hash_keys(self, request: Request, start: int, stop: int) -> Iterable[bytes]:
        """Yield also the whole spans that begin in a block: their tokens depend on all of them."""
        yield from item_keys(request, start, stop, start)
        first = bisect_left(self.spans, start, key=lambda span: span[0])
        for span in takewhile(lambda span: span[0] < stop, self.spans[first:]):
            yield b"span"
            yield array("q", (span[0] - start, span[1] - start)).tobytes()
            yield array("q", request.token_ids(*span)).tobytes()
            yield from item_keys(request, *span, start)

    def chunk(
        self, request: Request, start: int, wanted: int, step: StepPlan, plan: PlanItems
    ) -> tuple[int, list[ItemSlice]]:
        """Return a chunk that cuts no span: the first prompt of a step may exceed `wanted` to the end of one."""
        wanted = without_cutting(self.spans, start, wanted, may_extend=not step.prefills)
        num_tokens, items = plan(request, start, wanted)
        if num_tokens < wanted:  # an encoder has to wait, perhaps for an item within a span
            wanted = without_cutting(self.spans, start, num_tokens, may_extend=False)
            num_tokens, items = plan(request, start, wanted)
        return num_tokens, items


def without_cutting(spans: Sequence[Span], start: int, num_tokens: int, *, may_extend: bool) -> int:
    """Return how many tokens from `start` on make a chunk that cuts no span: at most `num_tokens`, or one whole span.

    Args:
        spans: of the prompt, in order.
        start: of the chunk; may lie inside a span whose beginning was found in the prefix cache.
        num_tokens: that could run.
        may_extend: whether the chunk may take more tokens than that, to the end of a span that it begins in. A span
            longer than a step's budget could not run otherwise.
    """
    stop = start + num_tokens
    index = bisect_right(spans, stop, key=lambda span: span[1])  # the first that ends behind the chunk
    if num_tokens == 0 or index == len(spans) or spans[index][0] >= stop:
        return num_tokens
    first, end = spans[index]
    if first > start:
        return first - start
    return end - start if may_extend else 0
