"""Which items' encoder outputs the worker holds, which requests need them, and which it must drop.

Bookkeeping only, counted in embeddings; the tensors are the worker's. An entry is referenced by the requests
whose placeholder it still has to fill, one reference per placeholder; unreferenced entries stay until room is needed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Entry:
    num_embeds: int
    references: set[tuple[str, int]] = field(default_factory=set)


class EncoderCache:
    """Reference-counted entries by item identifier, with least-recently-used eviction.

    Args:
        capacity_embeds: embeddings that all entries together may have.
        step_embeds: how many of them are computed in a step at most; None for all.

    Attributes:
        referenced_embeds: embeddings of entries that cannot be evicted now.
        queries: placeholders that an encoder's output was needed for.
        misses: how many of them had the encoder run.
    """

    def __init__(self, capacity_embeds: int, step_embeds: int | None = None) -> None:
        self.capacity_embeds = capacity_embeds
        self.step_embeds = capacity_embeds if step_embeds is None else step_embeds
        self.queries = 0
        self.misses = 0
        self._entries: dict[str, _Entry] = {}
        self._unreferenced: OrderedDict[str, None] = OrderedDict()
        self._held: dict[str, dict[int, str]] = {}  # request id -> feature index -> identifier
        self._used_embeds = 0
        self.referenced_embeds = 0
        self._freed: list[str] = []

    def __contains__(self, identifier: str) -> bool:
        return identifier in self._entries

    @property
    def usage(self) -> float:
        """Share of the capacity that cannot be evicted now, 0 to 1."""
        return self.referenced_embeds / self.capacity_embeds if self.capacity_embeds else 0.0

    def is_referenced(self, identifier: str) -> bool:
        """Whether the item is cached and a request's placeholder still needs it."""
        return identifier in self._entries and identifier not in self._unreferenced

    def held(self, request_id: str) -> Collection[int]:
        """Indices of the features whose encoder output a request holds."""
        return self._held.get(request_id, {}).keys()

    def can_allocate(self, num_embeds: int) -> bool:
        """Whether an entry of this size fits once everything unreferenced is evicted."""
        return self.referenced_embeds + num_embeds <= self.capacity_embeds

    def allocate(self, identifier: str, num_embeds: int, request_id: str, index: int) -> None:
        """Make a referenced entry for an item about to be encoded, evicting for room. It must fit and be new."""
        assert identifier not in self._entries, f"item {identifier!r} is cached already"
        assert self.can_allocate(num_embeds), f"no room for {num_embeds} embeddings of item {identifier!r}"
        while self._used_embeds + num_embeds > self.capacity_embeds:
            self._drop(next(iter(self._unreferenced)))
        self._entries[identifier] = _Entry(num_embeds)
        self._unreferenced[identifier] = None
        self._used_embeds += num_embeds
        self.misses += 1
        self.acquire(identifier, request_id, index)

    def acquire(self, identifier: str, request_id: str, index: int) -> bool:
        """Reference a cached item for a request's placeholder; False if it is not cached."""
        entry = self._entries.get(identifier)
        if entry is None:
            return False
        if not entry.references:
            del self._unreferenced[identifier]
            self.referenced_embeds += entry.num_embeds
        if (request_id, index) not in entry.references:  # else it is held since an earlier chunk
            self.queries += 1
        entry.references.add((request_id, index))
        self._held.setdefault(request_id, {})[index] = identifier
        return True

    def release(self, request_id: str, index: int) -> None:
        """Drop the reference of one placeholder that the request holds."""
        held = self._held[request_id]
        identifier = held.pop(index)
        if not held:
            del self._held[request_id]
        entry = self._entries[identifier]
        entry.references.remove((request_id, index))
        if not entry.references:
            self._unreferenced[identifier] = None
            self.referenced_embeds -= entry.num_embeds

    def release_all(self, request_id: str) -> None:
        """Drop every reference of a request, if it has any."""
        for index in tuple(self.held(request_id)):
            self.release(request_id, index)

    def discard(self, identifier: str) -> None:
        """Forget an item whose encoder may have failed, unless a request references it."""
        if identifier in self._unreferenced:
            self._drop(identifier)

    def discard_unreferenced(self) -> None:
        """Forget every item that no placeholder needs."""
        for identifier in tuple(self._unreferenced):
            self._drop(identifier)

    def clear(self) -> None:
        """Forget every item and reference, from any state; the worker must drop its outputs itself."""
        self._entries, self._held, self._freed = {}, {}, []
        self._unreferenced = OrderedDict()
        self._used_embeds = self.referenced_embeds = 0

    def take_freed(self) -> list[str]:
        """Identifiers dropped since the last call: the worker drops their embeddings before it encodes new ones."""
        freed, self._freed = self._freed, []
        return freed

    def check_integrity(self) -> None:
        """Check references, sizes and the two ways to find them against each other.

        Raises:
            AssertionError: what is wrong; always a bug of ours.
        """
        problems = []
        if sum(entry.num_embeds for entry in self._entries.values()) != self._used_embeds:
            problems.append(f"entries do not add up to {self._used_embeds} embeddings")
        if self._used_embeds > self.capacity_embeds:
            problems.append(f"{self._used_embeds} embeddings in a cache of {self.capacity_embeds}")
        referenced = {name: entry for name, entry in self._entries.items() if entry.references}
        if sum(entry.num_embeds for entry in referenced.values()) != self.referenced_embeds:
            problems.append(f"referenced entries do not add up to {self.referenced_embeds} embeddings")
        if self._entries.keys() - referenced.keys() != self._unreferenced.keys():
            problems.append("an entry is evictable and referenced, or neither")
        by_entry = {(*holder, name) for name, entry in self._entries.items() for holder in entry.references}
        by_holder = {(request_id, *pair) for request_id, held in self._held.items() for pair in held.items()}
        if by_entry != by_holder:
            problems.append(f"references differ: {by_entry ^ by_holder}")
        if problems:
            raise AssertionError("encoder cache: " + "; ".join(problems))

    def _drop(self, identifier: str) -> None:
        del self._unreferenced[identifier]
        self._used_embeds -= self._entries.pop(identifier).num_embeds
        self._freed.append(identifier)
