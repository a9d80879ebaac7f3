"""Which items a chunk takes embeddings of, and which encoders run for it, within the step's budget.

An item's encoder runs when a chunk first takes an embedding of it. First `plan`, which changes nothing, then `commit`,
which cannot fail. Decides about one chunk at a time and knows neither blocks nor queues.
"""

from __future__ import annotations

from collections.abc import Sequence

from corellm.scheduling.batch import ItemSlice
from corellm.scheduling.encoder_cache import EncoderCache
from corellm.scheduling.request import Request


class EncoderPlanner:
    """Cuts chunks to what the encoder cache and one step's encoder budget allow."""

    def __init__(self, cache: EncoderCache) -> None:
        self._cache = cache
        self._budget = 0

    def begin_step(self) -> None:
        """Start a step with a fresh budget."""
        self._budget = self._cache.step_embeds

    def plan(self, request: Request, start: int, num_tokens: int) -> tuple[int, list[ItemSlice]]:
        """Plan how much of the chunk `[start, start + num_tokens)` can run.

        Returns:
            The number of tokens, cut before the first placeholder whose encoder output cannot be had in this step
            (0 if the chunk begins inside of it, or takes items that do not lie in it), and the items that these tokens
            take embeddings of.
        """
        items: list[ItemSlice] = []
        pinned: set[str] = set()  # would become referenced by this plan
        pinned_embeds, encoded_embeds = self._cache.referenced_embeds, 0
        for item in request.part.items_needed(request, start, start + num_tokens):
            feature = request.features[item.index]
            if feature.identifier not in pinned and not self._cache.is_referenced(feature.identifier):
                pinned_embeds += feature.placeholder.num_embeds
                if feature.identifier not in self._cache:
                    encoded_embeds += feature.placeholder.num_embeds
                if pinned_embeds > self._cache.capacity_embeds or encoded_embeds > self._budget:
                    before = feature.placeholder.offset - start if request.part.items_in_prompt else 0
                    return max(0, before), items
                pinned.add(feature.identifier)
            items.append(item)
        return num_tokens, items

    def commit(self, request: Request, items: Sequence[ItemSlice]) -> list[tuple[str, int]]:
        """Acquire the items of a plan; those that the request holds stay held.

        Returns:
            `(request id, item index)` of those whose encoder must run.
        """
        encode = []
        # Those that are cached first: room for the others must not be made at their expense.
        for item in sorted(items, key=lambda item: request.features[item.index].identifier not in self._cache):
            feature, place = request.features[item.index], (request.request_id, item.index)
            if not self._cache.acquire(feature.identifier, *place):
                self._budget -= feature.placeholder.num_embeds
                self._cache.allocate(feature.identifier, feature.placeholder.num_embeds, *place)
                encode.append(place)
        return encode

    def release_computed(self, request: Request) -> None:
        """Drop the references of items whose embeddings are not needed any more."""
        for index in tuple(self._cache.held(request.request_id)):
            if request.part.has_taken(request, index):
                self._cache.release(request.request_id, index)
