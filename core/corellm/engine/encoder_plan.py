"""Which encoders run in this step: an item's when a chunk first touches its placeholder, within the step's budget.

First `plan`, which changes nothing, then `commit`, which cannot fail. It decides about one chunk at a time and knows
neither blocks nor queues.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from corellm.engine.encoder_cache import EncoderCache
from corellm.engine.request import Request


class EncoderPlanner:
    """Cuts chunks to what the encoder cache and one step's encoder budget (the cache's capacity) allow."""

    def __init__(self, cache: EncoderCache) -> None:
        self._cache = cache
        self._budget = 0

    def begin_step(self) -> None:
        """Start a step with a fresh budget."""
        self._budget = self._cache.capacity_embeds

    def plan(self, request: Request, start: int, num_tokens: int) -> tuple[int, list[int]]:
        """Plan how much of the chunk `[start, start + num_tokens)` can run, and which features it must acquire.

        Returns:
            The number of tokens, cut before the first placeholder whose encoder output cannot be had in this step
            (0 if the chunk begins inside of it), and the features that the request does not hold yet.
        """
        features: list[int] = []
        pinned: set[str] = set()  # would become referenced by this plan
        pinned_embeds, encoded_embeds = self._cache.referenced_embeds, 0
        for index in self._touched(request, start, start + num_tokens):
            identifier, placeholder = request.features[index].identifier, request.features[index].placeholder
            if identifier not in pinned and not self._cache.is_referenced(identifier):
                pinned_embeds += placeholder.num_embeds
                if identifier not in self._cache:
                    encoded_embeds += placeholder.num_embeds
                if pinned_embeds > self._cache.capacity_embeds or encoded_embeds > self._budget:
                    return max(0, placeholder.offset - start), features
                pinned.add(identifier)
            features.append(index)
        return num_tokens, features

    def commit(self, request: Request, features: list[int]) -> list[tuple[str, int]]:
        """Acquire the features of a plan.

        Returns:
            `(request id, feature index)` of the items whose encoder must run.
        """
        encode = []
        for index in features:
            feature = request.features[index]
            if not self._cache.acquire(feature.identifier, request.request_id, index):
                self._budget -= feature.placeholder.num_embeds
                self._cache.allocate(feature.identifier, feature.placeholder.num_embeds, request.request_id, index)
                encode.append((request.request_id, index))
        return encode

    def release_computed(self, request: Request) -> None:
        """Drop the references of placeholders that are computed to their end."""
        for index in tuple(self._cache.held(request.request_id)):
            if request.features[index].placeholder.end <= request.num_computed_tokens:
                self._cache.release(request.request_id, index)

    def _touched(self, request: Request, start: int, stop: int) -> Iterator[int]:
        """Features with an embedding in `[start, stop)` whose encoder output the request does not hold yet."""
        held = self._cache.held(request.request_id)
        first = bisect_right(request.features, start, key=lambda feature: feature.placeholder.end)
        for index in range(first, len(request.features)):
            placeholder = request.features[index].placeholder
            if placeholder.offset >= stop:
                break
            if index not in held and placeholder.embeds_before(stop) > placeholder.embeds_before(start):
                yield index
