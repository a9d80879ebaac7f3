"""Block tables of requests: which blocks hold their KV, prefix reuse, and blocks swapped to host memory.

Decisions only: the worker copies and writes what the tables say. A block is registered for reuse after the step that
filled it, so a failed step leaves no wrong block in the prefix cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from corellm.engine.block_hash import extend_block_hashes
from corellm.engine.block_pool import BlockPool
from corellm.engine.request import Request


class BlockManager:
    """Block tables of all requests.

    Args:
        num_blocks: blocks on the device, the null block (0) included.
        block_size: tokens per block.
        enable_prefix_caching: find equal prefixes and keep them after their request.
        num_host_blocks: blocks in host memory, for preemption by swap.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool, num_host_blocks: int = 0
    ) -> None:
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.num_host_blocks = num_host_blocks
        self._pool = BlockPool(num_blocks)
        self._tables: dict[str, list[int]] = {}
        self._num_registered: dict[str, int] = {}  # leading blocks of a table that were offered to the pool
        self._host_free = list(range(num_host_blocks - 1, -1, -1))
        self._host_tables: dict[str, list[int]] = {}

    @property
    def capacity(self) -> int:
        """Blocks that can be given out at all."""
        return self._pool.capacity

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be given out now, cached prefixes included."""
        return self._pool.num_free

    @property
    def usage(self) -> float:
        """Share of the blocks that sequences hold, 0 to 1."""
        return 1.0 - self._pool.num_free / self._pool.capacity

    def block_table(self, request_id: str) -> list[int]:
        """The live table of a request that holds blocks: it grows while the request runs, and is never cut."""
        return self._tables[request_id]

    def max_cached_blocks(self, request: Request) -> int:
        """Most blocks that `get_computed_blocks` may find: one token must be left to compute."""
        if not self.enable_prefix_caching or request.needs_every_row:
            return 0
        return (request.num_tokens - 1) // self.block_size

    def get_computed_blocks(self, request: Request) -> list[int]:
        """The longest cached prefix of a request without blocks; pass it to `allocate` before anything else happens.

        Never the whole sequence, since the last token must be computed to sample the next; and nothing for a request
        that needs every position's hidden state.
        """
        limit = self.max_cached_blocks(request)
        extend_block_hashes(request, self.block_size, limit)
        return self._cached_prefix(request, limit)

    def allocate(
        self, request: Request, num_new_tokens: int, computed_blocks: Sequence[int] = (), *, reserve: int = 0
    ) -> bool:
        """Make the request's table cover its computed tokens, `computed_blocks`, and `num_new_tokens` more.

        Args:
            request: with `computed_blocks` one that holds no blocks and has `num_computed_tokens == 0`.
            num_new_tokens: tokens to be computed.
            computed_blocks: from `get_computed_blocks`, to be shared.
            reserve: how many blocks must still be free afterwards, if any are needed.

        Returns:
            Whether there was room; without room nothing has changed.
        """
        table = self._tables.get(request.request_id, ())
        held = len(table) + len(computed_blocks)
        num_tokens = request.num_computed_tokens + len(computed_blocks) * self.block_size + num_new_tokens
        missing = -(-num_tokens // self.block_size) - held
        if table and missing <= 0:
            return True
        if not self._has_room(missing, computed_blocks, reserve):
            return False
        self._extend(request, computed_blocks, missing)
        return True

    def mark_computed(self, request: Request) -> None:
        """Offer the full blocks of the request's `num_computed_tokens` for reuse. Call it after the step ran."""
        if not self.enable_prefix_caching:
            return
        num_full = request.num_computed_tokens // self.block_size
        registered = self._num_registered[request.request_id]
        if num_full <= registered:
            return
        extend_block_hashes(request, self.block_size, num_full)
        table = self._tables[request.request_id]
        for index in range(registered, num_full):
            self._pool.register(table[index], request.block_hashes[index])
        self._num_registered[request.request_id] = num_full

    def free(self, request: Request) -> None:
        """Give back everything a request holds, on the device and on the host; nothing if it holds nothing."""
        self._release_table(request.request_id)
        self._host_free.extend(reversed(self._host_tables.pop(request.request_id, ())))

    def free_all(self) -> None:
        """Give back all requests' blocks; cached prefixes stay. Works from any state after an interrupt."""
        self._pool.release_all()
        self._tables, self._num_registered, self._host_tables = {}, {}, {}
        self._host_free = list(range(self.num_host_blocks - 1, -1, -1))

    def swap_out(self, request: Request) -> list[tuple[int, int]] | None:
        """Move a request's computed blocks to the host; its device blocks are free for this step's computation.

        Returns:
            `(device block, host block)` copies to make before anything is written; None (and nothing changed) if the
            host has no room or nothing is computed yet.
        """
        num_blocks = -(-request.num_computed_tokens // self.block_size)
        if not 0 < num_blocks <= len(self._host_free):
            return None
        host = [self._host_free.pop() for _ in range(num_blocks)]
        pairs = list(zip(self._tables[request.request_id], host, strict=False))
        self._host_tables[request.request_id] = host
        self._release_table(request.request_id)
        return pairs

    def swap_in(self, request: Request, *, reserve: int = 0) -> list[tuple[int, int]] | None:
        """Bring a swapped request back, with room for all its tokens; blocks still cached are shared, not copied.

        The host blocks are free at once: in the same step no `swap_out` may follow.

        Returns:
            `(host block, device block)` copies to make; None (and nothing changed) if the device has no room.
        """
        num_full = request.num_computed_tokens // self.block_size
        shared = self._cached_prefix(request, num_full) if self.enable_prefix_caching else []
        missing = -(-request.num_tokens // self.block_size) - len(shared)
        if not self._has_room(missing, shared, reserve):
            return None
        self._extend(request, shared, missing)
        host = self._host_tables.pop(request.request_id)
        self._host_free.extend(reversed(host))
        table = self._tables[request.request_id]
        return list(zip(host[len(shared) :], table[len(shared) :], strict=False))

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; refused while requests hold blocks, since they would go on to offer theirs.

        Returns:
            Whether it was done.
        """
        if self._tables or self._host_tables:
            return False
        self._pool.forget_all()
        return True

    def check_integrity(self) -> None:
        """Check that no block is lost, shared wrongly or in two states, on the device and on the host.

        Raises:
            AssertionError: what is wrong; always a bug of ours.
        """
        self._pool.check_integrity(Counter(block for table in self._tables.values() for block in table))
        for request_id, table in self._tables.items():
            if len(set(table)) != len(table):
                raise AssertionError(f"block table of {request_id!r} names a block twice: {table}")
        if self._tables.keys() != self._num_registered.keys() or self._tables.keys() & self._host_tables.keys():
            raise AssertionError("a request holds blocks on device and host, or is only half released")
        host = [*self._host_free, *(block for table in self._host_tables.values() for block in table)]
        if sorted(host) != list(range(self.num_host_blocks)):
            raise AssertionError(f"host blocks, free and used, are {sorted(host)}, not 0 to {self.num_host_blocks - 1}")

    def _cached_prefix(self, request: Request, limit: int) -> list[int]:
        blocks: list[int] = []
        for block_hash in request.block_hashes[:limit]:
            block = self._pool.find(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def _has_room(self, missing: int, shared: Sequence[int], reserve: int) -> bool:
        # Shared blocks without references count as free until they are shared.
        wanted = missing + sum(self._pool.is_free(block) for block in shared)
        return wanted + reserve <= self._pool.num_free

    def _extend(self, request: Request, shared: Sequence[int], missing: int) -> None:
        table = self._tables.setdefault(request.request_id, [])
        assert not (table and shared), "a prefix can only be shared at the start of a table"
        if not table:
            self._num_registered[request.request_id] = len(shared)
        for block in shared:  # all of them before the first `take`, which might evict one
            self._pool.share(block)
        table.extend(shared)
        table.extend(self._pool.take() for _ in range(missing))

    def _release_table(self, request_id: str) -> None:
        # From the tail: what is released first is evicted first, and a prefix without its head is never found.
        for block in reversed(self._tables.pop(request_id, ())):
            self._pool.release(block)
        self._num_registered.pop(request_id, None)
