"""Block tables of requests: which blocks hold their KV, prefix reuse, and blocks swapped to host memory.

Decisions only: the worker copies and writes what the tables say. A block is registered for reuse after the step that
filled it, so a failed step leaves no wrong block in the prefix cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from typing import Any

from corellm.scheduling.block_hash import extend_block_hashes
from corellm.scheduling.block_pool import BlockPool
from corellm.scheduling.block_user import BlockUser, Wanted
from corellm.scheduling.request import Request


class BlockManager:
    """Block tables of all requests.

    Args:
        num_blocks: blocks on the device, the null block (0) included.
        block_size: tokens per block.
        enable_prefix_caching: find equal prefixes and keep them after their request.
        num_host_blocks: blocks in host memory, for preemption by swap.
        make_users: makes what holds blocks beside the tables, of the pool of blocks.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool,
        num_host_blocks: int = 0,
        make_users: Callable[[BlockPool], Sequence[BlockUser]] = lambda pool: (),
    ) -> None:
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.num_host_blocks = num_host_blocks
        self._pool = BlockPool(num_blocks)
        self._users = make_users(self._pool)
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

    @property
    def shares_any_block(self) -> bool:
        """Whether there is a prefix cache in which a prefix may end behind any block."""
        return self.enable_prefix_caching and all(user.any_block for user in self._users)

    def surround(self, request: Request) -> None:
        """Add what users of blocks make of a new request to its part."""
        for user in self._users:
            request.part = user.around(request.part)

    def max_cached_blocks(self, request: Request) -> int:
        """Most blocks that `get_computed_blocks` may find: one token must be left to compute."""
        if not self.enable_prefix_caching or request.needs_every_row:
            return 0
        return (request.num_tokens - 1) // self.block_size

    def hash_prompt(self, request: Request) -> int:
        """Hash the blocks that `get_computed_blocks` looks up; returns how many."""
        limit = self.max_cached_blocks(request)
        extend_block_hashes(request, self.block_size, limit)
        return limit

    def get_computed_blocks(self, request: Request) -> list[int]:
        """The longest cached prefix of a request without blocks; pass it to `allocate` before anything else happens.

        Never the whole sequence, since the last token must be computed to sample the next; and nothing for a request
        that needs every position's hidden state.
        """
        blocks = self._cached_prefix(request, self.hash_prompt(request))
        for user in self._users:
            user.look_up(request)
            blocks = blocks[: user.reusable(blocks)]
        return blocks

    def are_coming(self, request: Request, computed_blocks: Sequence[int], hashes: Container[bytes]) -> bool:
        """Whether what a request lacks is about to be computed for others: then it waits, and shares it.

        Args:
            request: whose `get_computed_blocks` was called last.
            computed_blocks: what it returned.
            hashes: of the blocks that this step fills.
        """
        if any(user.are_coming(request, hashes) for user in self._users):
            return True
        if not self.shares_any_block or len(computed_blocks) >= self.max_cached_blocks(request):
            return False
        return request.block_hashes[len(computed_blocks)] in hashes

    def allocate(
        self, request: Request, num_new_tokens: int, computed_blocks: Sequence[int] = (), *, reserve: int = 0
    ) -> bool:
        """Make the request's table cover its computed tokens, `computed_blocks`, and `num_new_tokens` more.

        With its first blocks the request also gets those that users of blocks want for it.

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
        beside = [user.wanted(request) for user in self._users]
        if not self._has_room(missing, computed_blocks, beside, reserve):
            return False
        self._extend(request, computed_blocks, missing, beside)
        return True

    def reach(self, request: Request, start: int, stop: int) -> tuple[list[int], Sequence[Any]]:
        """Say that the next step computes the tokens `[start, stop)`, for which the request has blocks.

        Returns:
            What the worker must know of them: its live block table, and what users of blocks note beside it.
        """
        table = self._tables[request.request_id]
        if not self._users:
            return table, ()
        notes: list[Any] = []
        for user in self._users:
            user.reach(request.request_id, table, start, stop)
            notes += user.notes(request)
        return table, notes

    def take_messages(self) -> dict[str, Any]:
        """Return what users of blocks tell the worker of the time since the last call, by their names."""
        return {user.name: message for user in self._users if (message := user.take_message())}

    def mark_computed(self, request: Request) -> None:
        """Offer the full blocks of the request's `num_computed_tokens` for reuse. Call it after the step ran."""
        for user in self._users:
            user.computed(request)
        if not self.enable_prefix_caching:
            return
        num_full = request.num_computed_tokens // self.block_size
        for user in self._users:
            num_full = user.shareable(request, num_full)
        registered = self._num_registered[request.request_id]
        if num_full <= registered:
            return
        extend_block_hashes(request, self.block_size, num_full)
        table = self._tables[request.request_id]
        for index in range(registered, num_full):
            self._register(table[index], request.block_hashes[index])
        self._num_registered[request.request_id] = num_full

    def _register(self, block: int, block_hash: bytes) -> None:
        """Register a block, also instead of an equal one that is worth less."""
        known = self._pool.find(block_hash)
        if known is not None and any(user.prefers(block, known) for user in self._users):
            self._pool.unregister(known)
        self._pool.register(block, block_hash)

    def free(self, request: Request) -> None:
        """Give back everything a request holds, on the device and on the host; nothing if it holds nothing."""
        self._release_table(request)
        self._host_free.extend(reversed(self._host_tables.pop(request.request_id, ())))

    def free_all(self) -> None:
        """Give back all requests' blocks; cached prefixes stay. Works from any state after an interrupt."""
        self._pool.release_all()
        self._tables, self._num_registered, self._host_tables = {}, {}, {}
        for user in self._users:
            user.clear()
        self._host_free = list(range(self.num_host_blocks - 1, -1, -1))

    def swap_out(self, request: Request) -> list[tuple[int, int]] | None:
        """Move a request's computed blocks to the host; its device blocks are free for this step's computation.

        Those beside its table go with them, after the others in its host table.

        Returns:
            `(device block, host block)` copies to make before anything is written; None (and nothing changed) if the
            host has no room or nothing is computed yet.
        """
        num_blocks = -(-request.num_computed_tokens // self.block_size)
        beside = self._held_beside(request)
        if not 0 < num_blocks <= len(self._host_free) - len(beside):
            return None
        device = self._tables[request.request_id][:num_blocks] + beside
        host = [self._host_free.pop() for _ in device]
        self._host_tables[request.request_id] = host
        self._release_table(request)
        return list(zip(device, host, strict=True))

    def swap_in(self, request: Request, *, reserve: int = 0) -> list[tuple[int, int]] | None:
        """Bring a swapped request back, with room for all its tokens; blocks still cached are shared, not copied.

        The host blocks are free at once: in the same step no `swap_out` may follow.

        Returns:
            `(host block, device block)` copies to make; None (and nothing changed) if the device has no room.
        """
        num_full = request.num_computed_tokens // self.block_size
        shared = self._cached_prefix(request, num_full) if self.enable_prefix_caching else []
        for user in self._users:
            shared = shared[: user.usable(shared, request)]
        missing = -(-request.num_tokens // self.block_size) - len(shared)
        wanted = [user.wanted(request) for user in self._users]
        if not self._has_room(missing, shared, wanted, reserve):
            return None
        self._extend(request, shared, missing, wanted)
        host = self._host_tables.pop(request.request_id)
        self._host_free.extend(reversed(host))
        beside = self._held_beside(request)
        end = len(host) - len(beside)
        copies = list(zip(host[len(shared) : end], self._tables[request.request_id][len(shared) :], strict=False))
        cached = {block for one in wanted for block in one.shared}
        return copies + [(of, to) for of, to in zip(host[end:], beside, strict=True) if to not in cached]

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; refused while requests hold blocks, since they would go on to offer theirs.

        Returns:
            Whether it was done.
        """
        if self._tables or self._host_tables:
            return False
        self._pool.forget_all()
        for user in self._users:
            user.forget_cached()
        return True

    def check_integrity(self) -> None:
        """Check that no block is lost, shared wrongly or in two states, on the device and on the host.

        Raises:
            AssertionError: what is wrong; always a bug of ours.
        """
        held = Counter(block for table in self._tables.values() for block in table)
        for user in self._users:
            held.update(user.all_held())
            user.check_integrity()
        self._pool.check_integrity(held)
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

    def _has_room(self, missing: int, shared: Sequence[int], beside: Sequence[Wanted], reserve: int) -> bool:
        # Shared blocks without references count as free until they are shared.
        all_shared = [*shared, *(block for wanted in beside for block in wanted.shared)]
        all_new = missing + sum(wanted.num_new for wanted in beside)
        return all_new + sum(self._pool.is_free(block) for block in all_shared) + reserve <= self._pool.num_free

    def _held_beside(self, request: Request) -> list[int]:
        return [block for user in self._users for block in user.held(request)]

    def _extend(self, request: Request, shared: Sequence[int], missing: int, beside: Sequence[Wanted]) -> None:
        table = self._tables.setdefault(request.request_id, [])
        assert not (table and shared), "a prefix can only be shared at the start of a table"
        if not table:
            self._num_registered[request.request_id] = len(shared)
        # all of them before the first `take`, which might evict one
        for block in (*shared, *(block for wanted in beside for block in wanted.shared)):
            self._pool.share(block)
        table.extend(shared)
        taken = [self._pool.take() for _ in range(missing)]
        table.extend(taken)
        for user, wanted in zip(self._users, beside, strict=True):
            for block in taken:
                user.refill(block)
            user.hold(request, wanted)

    def _release_table(self, request: Request) -> None:
        # From the tail: what is released first is evicted first, and a prefix without its head is never found.
        for block in reversed(self._tables.pop(request.request_id, ())):
            self._pool.release(block)
        self._num_registered.pop(request.request_id, None)
        for user in self._users:
            user.release(request)
