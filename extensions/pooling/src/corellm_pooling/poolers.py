"""Hidden states of a step's chunks to results of requests, whatever way a prompt was cut into chunks.

A step has a `PooledChunk` for each chunk. What a pooler needs of earlier chunks it keeps in the request's `carried`, by
the position of the chunk's first token: computing a chunk again replaces its entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from corellm_pooling.heads import Head
from corellm_pooling.params import PoolingParams


@dataclass(frozen=True)
class PooledChunk:
    """A chunk of a request's prompt, and its rows in the step's hidden states."""

    params: PoolingParams
    first: int
    """Row of its first token."""
    start: int
    """Position of its first token in the prompt."""
    token_ids: Sequence[int]
    ends: bool
    """Whether it is the prompt's last chunk."""
    carried: dict[int, Tensor]
    """The request's own; see above."""

    @property
    def stop(self) -> int:
        """One after the row of its last token."""
        return self.first + len(self.token_ids)


class Pooler(Protocol):
    """From hidden states to one task's results."""

    def needs_every_row(self, token_ids: Sequence[int]) -> bool:
        """Whether it needs hidden states before the last token's: then no prefix may come from the cache."""
        ...

    def check(self, params: PoolingParams) -> None:
        """Refuse parameters that the model cannot fulfil."""
        ...

    def pool(self, hidden: Tensor, chunks: Sequence[PooledChunk]) -> list[Tensor | None]:
        """Return the result of every chunk that ends its prompt, None for the others; `hidden` is the step's."""
        ...


_PARTS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "CLS": lambda rows, start: rows[0].float(),
    "LAST": lambda rows, start: rows[-1].float(),
    "MAX": lambda rows, start: rows.amax(dim=0).float(),
    "MEAN": lambda rows, start: rows.sum(dim=0, dtype=torch.float32),
    "MEAN_SQRT": lambda rows, start: rows.sum(dim=0, dtype=torch.float32),
    "WEIGHTED": lambda rows, start: torch.arange(start + 1.0, start + 1 + len(rows), device=rows.device) @ rows.float(),
}
"""What is kept of a chunk's hidden states `[tokens, hidden_size]`, by pooling type and position of the first."""

_WHOLES: dict[str, Callable[[list[Tensor], int], Tensor]] = {
    "CLS": lambda parts, length: parts[0],
    "LAST": lambda parts, length: parts[-1],
    "MAX": lambda parts, length: torch.stack(parts).amax(dim=0),
    "MEAN": lambda parts, length: _sum(parts) / length,
    "MEAN_SQRT": lambda parts, length: _sum(parts) / length**0.5,
    "WEIGHTED": lambda parts, length: _sum(parts) / (length * (length + 1) / 2),
}
"""What becomes of a prompt's parts and its length."""


def _sum(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(dim=0)


class SequencePooler:
    """One result for the prompt.

    Args:
        pooling_types: of `corellm_pooling.params.SEQUENCE_POOLING`; those of several are joined.
        head: makes results of pooled hidden states.
        padding: token that is never the last one, of `LAST` alone; of a prompt without another, the first is pooled.
    """

    def __init__(self, pooling_types: Sequence[str], head: Head, *, padding: int | None = None) -> None:
        self._types, self._head, self._padding = pooling_types, head, padding

    def needs_every_row(self, token_ids: Sequence[int]) -> bool:
        """Whether another token than the last is pooled."""
        return any(kind != "LAST" for kind in self._types) or token_ids[-1] == self._padding

    def check(self, params: PoolingParams) -> None:
        """Refuse parameters that the head cannot fulfil."""
        self._head.check(params)

    def pool(self, hidden: Tensor, chunks: Sequence[PooledChunk]) -> list[Tensor | None]:
        """Return `[width]` for every chunk that ends its prompt; rows with equal parameters share one head call."""
        results: list[Tensor | None] = [None] * len(chunks)
        by_params: dict[PoolingParams, list[int]] = {}
        for index, chunk in enumerate(chunks):
            rows = hidden[chunk.first : chunk.first + self._length(chunk)]
            if len(rows):
                chunk.carried[chunk.start] = torch.cat([_PARTS[kind](rows, chunk.start) for kind in self._types])
            if chunk.ends:
                by_params.setdefault(chunk.params, []).append(index)
        for params, indices in by_params.items():
            rows = self._head(torch.stack([self._pooled(chunks[index]) for index in indices]), params)
            for index, row in zip(indices, rows, strict=True):
                results[index] = row
        return results

    def _length(self, chunk: PooledChunk) -> int:
        """Return the number of a chunk's tokens without padding at its end; the prompt's first always counts."""
        tokens = len(chunk.token_ids)
        while tokens and chunk.token_ids[tokens - 1] == self._padding:
            tokens -= 1
        return max(tokens, int(chunk.start == 0))

    def _pooled(self, chunk: PooledChunk) -> Tensor:
        """Return the pooled hidden states `[pooling_types * hidden_size]` of a prompt whose last chunk this is."""
        length, count = chunk.start + len(chunk.token_ids), len(self._types)
        split = [part.chunk(count) for part in chunk.carried.values()]
        return torch.cat([_WHOLES[kind]([parts[i] for parts in split], length) for i, kind in enumerate(self._types)])


class TokenPooler:
    """A result for every token, or for every step tag.

    Args:
        head: makes results of hidden states; applied to each chunk.
        step_tag_id: token whose results are kept; None for all.
        skipped: tokens whose results are left out, by side.
    """

    def __init__(
        self, head: Head, step_tag_id: int | None = None, *, skipped: Mapping[str, frozenset[int]] | None = None
    ) -> None:
        self._head, self._step_tag_id, self._skipped = head, step_tag_id, skipped or {}

    def needs_every_row(self, token_ids: Sequence[int]) -> bool:
        """True: each token has a result."""
        return True

    def check(self, params: PoolingParams) -> None:
        """Refuse parameters that the head cannot fulfil."""
        self._head.check(params)

    def pool(self, hidden: Tensor, chunks: Sequence[PooledChunk]) -> list[Tensor | None]:
        """Return `[tokens, width]` for every chunk that ends its prompt."""
        for chunk in chunks:
            rows = hidden[chunk.first : chunk.stop]
            if self._step_tag_id is not None:
                rows = rows[[i for i, token in enumerate(chunk.token_ids) if token == self._step_tag_id]]
            if skipped := self._skipped.get(chunk.params.side or ""):
                rows = rows[[i for i, token in enumerate(chunk.token_ids) if token not in skipped]]
            chunk.carried[chunk.start] = self._head(rows, chunk.params)
        return [torch.cat(list(chunk.carried.values())) if chunk.ends else None for chunk in chunks]


class DispatchPooler:
    """Sends each request to the pooler of its task: a batch may have all tasks.

    Args:
        poolers: by task.
    """

    def __init__(self, poolers: Mapping[str, Pooler]) -> None:
        self._poolers = poolers

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that requests may have."""
        return tuple(self._poolers)

    def check(self, params: PoolingParams) -> None:
        """Refuse parameters that the task's pooler cannot fulfil."""
        self._poolers[params.task].check(params)

    def needs_every_row(self, params: PoolingParams, token_ids: Sequence[int]) -> bool:
        """Whether the request's whole prompt must be computed: no prefix may come from the cache."""
        return self._poolers[params.task].needs_every_row(token_ids)

    def pool(self, hidden: Tensor, chunks: Sequence[PooledChunk]) -> list[Tensor | None]:
        """Return the result of every chunk that ends its prompt, None for the others."""
        results: list[Tensor | None] = [None] * len(chunks)
        by_task: dict[str, list[int]] = {}
        for index, chunk in enumerate(chunks):
            by_task.setdefault(chunk.params.task, []).append(index)
        for task, indices in by_task.items():
            pooled = self._poolers[task].pool(hidden, [chunks[index] for index in indices])
            for index, result in zip(indices, pooled, strict=True):
                results[index] = result
        return results
