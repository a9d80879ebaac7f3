"""Places of blocks in the layers that see a window of tokens only: of each sequence they need the last blocks.

A block has keys and values in every layer without a window. In those with one it has them while the window of some
sequence reaches it: it has a *place* there, one of fewer. Places of blocks that no window reaches any more are kept for
the prefix cache until another block needs one. Decisions only: the worker is told each change.

There are as many places as all windows and one step can need, or as many as blocks: taking one never fails.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from corellm.scheduling.block_user import BlockUser
from corellm.scheduling.request import Request


class WindowBlocks(BlockUser):
    """The places of all blocks.

    Args:
        num_blocks: blocks on the device, the null block (0) included.
        num_places: places, that of the null block (0) included.
        block_size: tokens per block.
        window: most tokens that a token sees in these layers, itself included.
    """

    name = "windows"

    def __init__(self, num_blocks: int, num_places: int, block_size: int, window: int) -> None:
        self._num_blocks, self.num_places, self._block_size, self._window = num_blocks, num_places, block_size, window
        self.clear()

    def clear(self) -> None:
        """Start over: no block has a place. The worker forgets them, too."""
        self._place_of = [0] * self._num_blocks
        self._users = [0] * self._num_blocks
        """Sequences whose window reaches the block."""
        self._blank = list(range(self.num_places - 1, 0, -1))
        self._kept: OrderedDict[int, None] = OrderedDict()
        """Blocks with a place and without users, those without for longest first."""
        self._held: dict[str, list[int]] = {}
        """By request: the blocks that its window reaches, in the order of its table."""
        self._first: dict[str, int] = {}
        """By request: the index of the first of them in its table."""
        self._changes: dict[int, int] = {}

    def reach(self, request_id: str, table: Sequence[int], start: int, stop: int) -> None:
        """Give a place to every block that the tokens `[start, stop)` of a request see or write."""
        held, needed = self._held.setdefault(request_id, []), self.first_block(start)
        first = self._first.setdefault(request_id, needed)
        for block in table[first + len(held) : -(-stop // self._block_size)]:
            self._take(block)
            held.append(block)

    def computed(self, request: Request) -> None:
        """Let go of the blocks that no token from the request's next one on sees, and of those of wrong drafts."""
        request_id, needed = request.request_id, self.first_block(request.num_computed_tokens)
        held = self._held[request_id]
        written = -(-(request.num_computed_tokens + 2) // self._block_size)  # a step ahead may have reached two
        while self._first[request_id] + len(held) > max(written, needed):
            self._let_go(held.pop())
        behind = max(0, needed - self._first[request_id])
        for block in held[:behind]:
            self._let_go(block)
        del held[:behind]
        self._first[request_id] += behind

    def release(self, request: Request) -> None:
        """Let go of all blocks that a request holds, if any."""
        for block in reversed(self._held.pop(request.request_id, ())):
            self._let_go(block)
        self._first.pop(request.request_id, None)

    def first_block(self, position: int) -> int:
        """Index of the first block that the token at a position sees."""
        return max(0, position - self._window + 1) // self._block_size

    def reusable(self, blocks: Sequence[int]) -> int:
        """How many leading blocks of a cached prefix can be reused: the token behind them must find its window."""
        return next(
            count
            for count in range(len(blocks), -1, -1)
            if all(self._place_of[block] for block in blocks[self.first_block(count * self._block_size) : count])
        )

    def usable(self, blocks: Sequence[int], request: Request) -> int:
        """How many leading blocks have places where the request's next token sees them."""
        first = self.first_block(request.num_computed_tokens)
        lacking = (i for i, block in enumerate(blocks) if i >= first and not self._place_of[block])
        return next(lacking, len(blocks))

    def prefers(self, block: int, known: int) -> bool:
        """Whether a block has a place, and another with the same contents has lost its own."""
        return not self._place_of[known] and bool(self._place_of[block])

    def refill(self, block: int) -> None:
        """Drop the place of a block that gets other contents."""
        if self._place_of[block]:
            del self._kept[block]
            self._blank.append(self._drop(block))

    def take_message(self) -> list[tuple[int, int]]:
        """Return `(block, place)` of the blocks whose place changed since the last call, 0 for none."""
        changes, self._changes = list(self._changes.items()), {}
        return changes

    def check_integrity(self) -> None:
        """Check that every place is blank, or that of one block.

        Raises:
            AssertionError: what is wrong; always a bug of ours.
        """
        placed = [block for block, place in enumerate(self._place_of) if place]
        places = sorted([*self._blank, *(self._place_of[block] for block in placed)])
        if places != list(range(1, self.num_places)):
            raise AssertionError(f"places, blank and given, are {places}, not 1 to {self.num_places - 1}")
        users = [0] * len(self._users)
        for blocks in self._held.values():
            for block in blocks:
                users[block] += 1
        if users != self._users:
            raise AssertionError(f"users of blocks are counted as {self._users}, and are {users}")
        if {block for block in placed if not users[block]} != set(self._kept):
            raise AssertionError("a block with a place is neither used nor kept, or both")

    def _take(self, block: int) -> None:
        if not self._users[block] and self._place_of[block]:
            del self._kept[block]
        elif not self._place_of[block]:
            place = self._blank.pop() if self._blank else self._drop(self._kept.popitem(last=False)[0])
            self._place_of[block] = self._changes[block] = place
        self._users[block] += 1

    def _let_go(self, block: int) -> None:
        self._users[block] -= 1
        if not self._users[block]:
            self._kept[block] = None

    def _drop(self, block: int) -> int:
        place, self._place_of[block], self._changes[block] = self._place_of[block], 0, 0
        return place


def most_places(window: int, block_size: int, num_seqs: int, step_tokens: int) -> int:
    """Return how many places all windows and the tokens of one step can need, that of the null block included.

    A sequence has the tokens of its window before its chunk, and the chunk; either begins and ends within a block.
    """
    behind = -(-(window - 1) // block_size) + 1
    return 1 + num_seqs * (behind + 1) + -(-step_tokens // block_size)
