"""What holds blocks, or something of theirs, beside the block tables of a `BlockManager`.

Most models have no user, and their requests run none of this.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from corellm.scheduling.request import Request
    from corellm.scheduling.request_part import RequestPart


class Wanted(NamedTuple):
    """Blocks that a request lacks beside its table."""

    shared: Sequence[int] = ()
    """Cached ones, to be shared."""
    num_new: int = 0
    """How many blank ones."""


class BlockUser:
    """Holds nothing; the base of users. Methods are in the order in which a request runs.

    Decisions only. A block manager calls all of them, `clear` and `check_integrity` in any state.
    """

    name: ClassVar[str]
    """By which the worker finds what `take_message` returns."""
    any_block: ClassVar[bool] = True
    """Whether a cached prefix may end behind any block; else `are_coming` says what is worth waiting for."""

    def around(self, part: RequestPart) -> RequestPart:
        """Return the part of a new request, with what the user makes of it."""
        return part

    def look_up(self, request: Request) -> None:
        """Find what the cache has of a request that holds no blocks."""

    def are_coming(self, request: Request, hashes: Container[bytes]) -> bool:
        """Whether blocks that a request lacks are among those of some hashes, which a step is about to fill."""
        return False

    def reusable(self, blocks: Sequence[int]) -> int:
        """Return how many leading blocks of a cached prefix a new sequence can share, and go on from there."""
        return len(blocks)

    def usable(self, blocks: Sequence[int], request: Request) -> int:
        """Return how many leading blocks a request can share that comes back, and goes on after its computed tokens."""
        return len(blocks)

    def wanted(self, request: Request) -> Wanted:
        """Return the blocks that a request lacks; none once it holds them."""
        return Wanted()

    def hold(self, request: Request, wanted: Wanted) -> None:
        """Give a request what it wanted; the shared blocks are shared already."""

    def refill(self, block: int) -> None:
        """Note that a block is about to get other contents."""

    def reach(self, request_id: str, table: Sequence[int], start: int, stop: int) -> None:
        """Note that the next step computes the tokens `[start, stop)`, for which the table has blocks."""

    def notes(self, request: Request) -> Iterable[Any]:
        """Yield what the worker must know of a request's chunk."""
        return ()

    def take_message(self) -> Any:
        """Return what the worker must know of the time since the last call, or something false."""
        return None

    def computed(self, request: Request) -> None:
        """Note that a step has computed a request's tokens up to `num_computed_tokens`."""

    def shareable(self, request: Request, num_blocks: int) -> int:
        """Return how many of a request's leading full blocks others may share, up to `num_blocks`."""
        return num_blocks

    def prefers(self, block: int, known: int) -> bool:
        """Whether a block is worth more to the prefix cache than a known one of the same contents."""
        return False

    def held(self, request: Request) -> Sequence[int]:
        """Return the blocks of a request beside its table."""
        return ()

    def release(self, request: Request) -> None:
        """Let go of what a request holds, if anything."""

    def clear(self) -> None:
        """Forget every request, after all blocks were released."""

    def forget_cached(self) -> None:
        """Forget what is kept for the prefix cache, which is emptied while no request holds blocks."""

    def all_held(self) -> Iterable[int]:
        """Yield the blocks of all requests beside their tables, for checks."""
        return ()

    def check_integrity(self) -> None:
        """Check the user's own books.

        Raises:
            AssertionError: what is wrong; always a bug of ours.
        """
