"""Snapshots of states at borders of blocks, for the prefix cache: which are kept, and in which rows. Decisions only.

A cached prefix can be reused up to a border at which both its blocks and a snapshot are there. Snapshots are kept where
they are likely to be wanted: at the last border before the end of a prompt, from where the next turn of a conversation
goes on; and where a prompt left a known prefix without one, as others will leave it there, too. A snapshot is found by
the hash of the block before it. It costs a copy of the state within a step that computes these tokens anyway.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import NamedTuple

from corellm.scheduling.block_hash import extend_block_hashes
from corellm.scheduling.block_pool import BlockPool
from corellm.scheduling.block_user import BlockUser, Wanted
from corellm.scheduling.request import Request
from corellm.scheduling.request_part import RequestPart
from corellm_recurrent.segments import Segmented


class Snapshot(NamedTuple):
    """What the worker is told with a chunk: to go on from a row if it is of the chunk's start, else to write it."""

    num_tokens: int
    """Tokens that the state has seen."""
    row: int
    """Among the rows of snapshots."""


@dataclass(slots=True)
class _Sequence:
    """What is to be done for a request that holds blocks."""

    num_shareable: int
    """Tokens whose keys and values are those of any prompt that begins with them."""
    read: bytes | None = None
    """The snapshot that its first chunk goes on from."""
    wanted: list[tuple[int, bytes]] = field(default_factory=list)
    """Borders, ascending, at which it will leave snapshots."""
    writing: list[tuple[bytes, int]] = field(default_factory=list)
    """Snapshots that the step in flight writes, with their rows."""


@dataclass(slots=True)
class _Found:
    """What was found for a request that waits."""

    request: Request | None = None
    num_tokens: int = 0
    """From where it can go on."""
    num_known: int = 0
    """Tokens of its prompt whose blocks are cached, or about to be."""


class Snapshots(BlockUser):
    """The rows of all snapshots, the least recently used of which is evicted first.

    Args:
        pool: of blocks.
        block_size: tokens per block.
        segment: tokens of a segment: within one there is no border.
        num_rows: most snapshots; 0 where there is no prefix cache.
    """

    name = "snapshots"
    any_block = False

    def __init__(self, pool: BlockPool, block_size: int, segment: int, num_rows: int) -> None:
        self._pool, self._block_size, self._segment, self._num_rows = pool, block_size, segment, num_rows
        self._border = math.lcm(segment, block_size)
        self.clear()

    def clear(self) -> None:
        """Start over, without snapshots: what an interrupted step wrote is not known."""
        self._sequences: dict[str, _Sequence] = {}
        self._coming: set[bytes] = set()
        """Snapshots that requests are about to leave."""
        self._found, self._chunk = _Found(), (0, 0)
        self.forget_cached()

    def forget_cached(self) -> None:
        """Drop every snapshot."""
        self._rows: OrderedDict[bytes, int] = OrderedDict()
        """Of complete ones, the least recently used first."""
        self._free = list(range(self._num_rows - 1, -1, -1))

    @property
    def num_kept(self) -> int:
        """Snapshots that can be found."""
        return len(self._rows)

    def around(self, part: RequestPart) -> RequestPart:
        """Have a request's chunks end where segments do."""
        return Segmented(part, self._segment)

    def look_up(self, request: Request) -> None:
        """Note whose prefix is looked up."""
        self._found = _Found(request)

    def reusable(self, blocks: Sequence[int]) -> int:
        """Return how many blocks of the cached prefix of the request that was looked up are before a snapshot."""
        found = self._found
        assert found.request is not None
        found.num_known = len(blocks) * self._block_size
        kept = (n for n, of in self._borders(found.request, 0, found.num_known) if of in self._rows)
        found.num_tokens = next(kept, 0)
        return found.num_tokens // self._block_size

    def usable(self, blocks: Sequence[int], request: Request) -> int:
        """Return how many blocks are of whole segments of a prompt: others were computed otherwise than cached ones."""
        return min(len(blocks), self._whole(request) // self._block_size)

    def are_coming(self, request: Request, hashes: Container[bytes]) -> bool:
        """Whether another request is about to leave a snapshot further on in a prompt than those that are kept."""
        found = self._found
        assert found.request is request
        rest = islice(request.block_hashes, found.num_known // self._block_size, None)
        known = takewhile(lambda of: of in hashes or self._pool.find(of) is not None, rest)
        found.num_known += sum(1 for _ in known) * self._block_size
        borders = self._borders(request, found.num_tokens, len(request.block_hashes) * self._block_size)
        return bool(self._coming) and any(of in self._coming for _, of in borders)

    def _borders(self, request: Request, first: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """Yield the borders in a prompt from behind `first` to `stop`, the last first, each with its block's hash."""
        last = min(stop, request.num_prompt_tokens) // self._border * self._border
        for border in range(last, first, -self._border):
            yield border, request.block_hashes[border // self._block_size - 1]

    def _whole(self, request: Request) -> int:
        return request.num_prompt_tokens - request.num_prompt_tokens % self._segment

    def hold(self, request: Request, wanted: Wanted) -> None:
        """Plan the snapshots of a request that has just got its first blocks."""
        if request.request_id in self._sequences:
            return
        if request.num_computed_tokens:  # it was swapped out: its state comes back, and its prompt's blocks were shared
            self._sequences[request.request_id] = _Sequence(0)
            return
        found, last = self._found, request.num_prompt_tokens - 1
        assert found.request is request
        sequence = self._sequences[request.request_id] = _Sequence(self._whole(request))
        if not self._num_rows:
            return
        extend_block_hashes(request, self._block_size, last // self._block_size)
        at = {next(self._borders(request, found.num_tokens, n), None) for n in (found.num_known, last)}
        known = self._rows.keys() | self._coming
        sequence.wanted = sorted(border for border in at if border is not None and border[1] not in known)
        self._coming.update(of for _, of in sequence.wanted)
        if found.num_tokens:
            sequence.read = request.block_hashes[found.num_tokens // self._block_size - 1]
            self._rows.move_to_end(sequence.read)

    def reach(self, request_id: str, table: Sequence[int], start: int, stop: int) -> None:
        """Note a chunk; where it begins within a segment, nothing of this and later ones is shared."""
        self._chunk = start, stop
        sequence = self._sequences[request_id]
        if start < sequence.num_shareable and start % self._segment:
            sequence.num_shareable = start - start % self._segment
            self._give_up(sequence, sequence.num_shareable)

    def notes(self, request: Request) -> Iterable[Snapshot]:
        """Yield which snapshot the chunk that was reached goes on from, and which ones it leaves."""
        sequence, (start, stop) = self._sequences[request.request_id], self._chunk
        if sequence.read is not None:
            yield Snapshot(start, self._rows[sequence.read])
        while sequence.wanted and sequence.wanted[0][0] <= stop:
            border, of = sequence.wanted.pop(0)
            row = self._take()
            if row is None:
                self._coming.discard(of)
                continue
            sequence.writing.append((of, row))
            yield Snapshot(border, row)

    def _take(self) -> int | None:
        """Return a row, if need be that of a snapshot: of lost blocks, or the least recently used one; None if all are
        being read or written.
        """
        if self._free:
            return self._free.pop()
        read = {sequence.read for sequence in self._sequences.values()}
        idle = [of for of in self._rows if of not in read]
        lost = (of for of in idle if self._pool.find(of) is None)
        evicted = next(lost, idle[0] if idle else None)
        return None if evicted is None else self._rows.pop(evicted)

    def computed(self, request: Request) -> None:
        """Have what a request's step wrote found from now on."""
        sequence = self._sequences[request.request_id]
        sequence.read = None
        for of, row in sequence.writing:
            self._rows[of] = row
            self._coming.discard(of)
        sequence.writing.clear()

    def shareable(self, request: Request, num_blocks: int) -> int:
        """Return how many of a request's full blocks are of whole segments of its prompt."""
        whole = min(self._sequences[request.request_id].num_shareable, request.num_computed_tokens)
        return min(num_blocks, (whole - whole % self._segment) // self._block_size)

    def release(self, request: Request) -> None:
        """Give up what a request was about to leave."""
        sequence = self._sequences.pop(request.request_id, None)
        if sequence is not None:
            self._give_up(sequence, 0)
            self._free += [row for _, row in sequence.writing]
            self._coming.difference_update(of for of, _ in sequence.writing)

    def _give_up(self, sequence: _Sequence, first: int) -> None:
        """Leave no snapshots behind a token."""
        self._coming.difference_update(of for border, of in sequence.wanted if border > first)
        sequence.wanted = [one for one in sequence.wanted if one[0] <= first]

    def check_integrity(self) -> None:
        """Check that every row is free or that of one snapshot.

        Raises:
            AssertionError: what is wrong; always a bug of ours.
        """
        sequences = self._sequences.values()
        writing = [one for sequence in sequences for one in sequence.writing]
        rows = sorted([*self._free, *self._rows.values(), *(row for _, row in writing)])
        if rows != list(range(self._num_rows)):
            raise AssertionError(f"rows of snapshots, free and taken, are {rows}, not 0 to {self._num_rows - 1}")
        coming = [of for of, _ in writing] + [of for sequence in sequences for _, of in sequence.wanted]
        if len(set(coming)) != len(coming) or set(coming) != self._coming or self._coming & self._rows.keys():
            raise AssertionError("a snapshot is about to be left twice, by no one, or is there already")
        if not {sequence.read for sequence in sequences} - {None} <= self._rows.keys():
            raise AssertionError("a snapshot that is read is gone")
