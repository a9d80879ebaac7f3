"""Blocks of encoders' states: which blocks hold the keys and values that a request's decoder attends to across.

An encoder-decoder's request holds these beside its block table, all at once and until it ends. They are written in one
step and then only read, so equal prompts share them: all of them, as every state depends on the whole prompt.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from corellm.engine.block_hash import hash_block
from corellm.engine.block_pool import BlockPool
from corellm.engine.request import Request


class StateBlocks:
    """The state tables of all requests; the pool is the block manager's.

    Args:
        pool: to take blocks from.
        block_size: states per block.
        enable_caching: find equal prompts' states and keep them after their request.
    """

    def __init__(self, pool: BlockPool, block_size: int, *, enable_caching: bool) -> None:
        self._pool, self._block_size, self._enable_caching = pool, block_size, enable_caching
        self._tables: dict[str, list[int]] = {}

    def __contains__(self, request: Request) -> bool:
        return request.request_id in self._tables

    @property
    def tables(self) -> Iterable[Sequence[int]]:
        """Every table, for checks."""
        return self._tables.values()

    def table(self, request: Request) -> list[int]:
        """The blocks of a request that holds some."""
        return self._tables[request.request_id]

    def count(self, request: Request) -> int:
        """Number of blocks that a request's states need; 0 for a model that is only a decoder."""
        return num_state_blocks(request, self._block_size)

    def cached(self, request: Request) -> list[int]:
        """The blocks of an equal prompt's states if all are cached, else none; to be shared before anything happens."""
        if request.encoder_prompt is None or not self._enable_caching:
            return []
        found = [self._pool.find(key) for key in state_hashes(request, self._block_size)]
        return [] if None in found else [block for block in found if block is not None]

    def are_coming(self, request: Request, hashes: Container[bytes]) -> bool:
        """Whether equal states are not cached yet, and are among those of some hashes."""
        if not self._enable_caching:
            return False
        first = state_hashes(request, self._block_size)[0]
        return first in hashes and self._pool.find(first) is None

    def hold(self, request: Request, cached: Sequence[int]) -> list[int]:
        """Give a request its blocks: those that are cached and shared already, or blank ones."""
        table = list(cached) or [self._pool.take() for _ in range(self.count(request))]
        self._tables[request.request_id] = table
        return table

    def register(self, request: Request) -> None:
        """Offer a request's blocks for reuse, once they are written."""
        if self._enable_caching and request in self:
            for block, key in zip(self.table(request), state_hashes(request, self._block_size), strict=True):
                self._pool.register(block, key)

    def release(self, request: Request) -> None:
        """Give back a request's blocks, if it holds any."""
        for block in reversed(self._tables.pop(request.request_id, ())):
            self._pool.release(block)

    def clear(self) -> None:
        """Forget every table, after the pool has released all blocks."""
        self._tables = {}


def num_state_blocks(request: Request, block_size: int) -> int:
    """Number of blocks that a request's states need; 0 for a model that is only a decoder."""
    return 0 if request.encoder_prompt is None else -(-request.encoder_prompt.num_states // block_size)


def state_hashes(request: Request, block_size: int) -> list[bytes]:
    """The hash of each block of a request's states, made at its first call."""
    if not request.state_hashes:
        assert request.encoder_prompt is not None
        digest, count = request.encoder_prompt.digest, num_state_blocks(request, block_size)
        request.state_hashes = [hash_block(digest, [index], [b"states"]) for index in range(count)]
    return request.state_hashes
