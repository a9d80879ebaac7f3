"""The blocks of the KV cache: which are blank, which hold a cached prefix, and how many sequences use each.

A block is in exactly one of three states:

    blank       no references, not registered
    evictable   no references, but its contents are registered under a hash: kept until room is needed
    used        referenced by one or more sequences; registered or not

The pool knows no requests; `BlockManager` keeps their block tables. Block 0 is the null block: padding writes go there,
and it is never given out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping


class BlockPool:
    """Reference counts, the map from hash to block, and least-recently-used eviction; every operation is O(1).

    Args:
        num_blocks: blocks in the cache, the null block included.
    """

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 1, f"a pool needs the null block and one more, got {num_blocks}"
        self.capacity = num_blocks - 1
        self._references = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._blank = list(range(num_blocks - 1, 0, -1))
        self._evictable: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that could be given out now: blank and evictable."""
        return len(self._blank) + len(self._evictable)

    def find(self, block_hash: bytes) -> int | None:
        """The block registered under a hash; it stays valid only once it is referenced."""
        return self._block_of.get(block_hash)

    def is_free(self, block: int) -> bool:
        """Whether the block has no references."""
        return self._references[block] == 0

    def take(self) -> int:
        """Give out a block with one reference: a blank one, else the one evictable for longest. There must be one."""
        if self._blank:
            block = self._blank.pop()
        else:
            block, _ = self._evictable.popitem(last=False)
            self._forget(block)
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a reference to a registered block."""
        if self._references[block] == 0:
            del self._evictable[block]
        self._references[block] += 1

    def release(self, block: int) -> None:
        """Drop a reference. The last one makes the block evictable (as the most recent) or blank."""
        self._references[block] -= 1
        if self._references[block] == 0:
            if self._hash_of[block] is None:
                self._blank.append(block)
            else:
                self._evictable[block] = None

    def register(self, block: int, block_hash: bytes) -> None:
        """Register a used block under its hash, unless another block has it already."""
        if block_hash not in self._block_of and self._hash_of[block] is None:
            self._block_of[block_hash] = block
            self._hash_of[block] = block_hash

    def unregister(self, block: int) -> None:
        """Forget the contents of a registered block: it is blank if nothing uses it."""
        self._forget(block)
        if self._references[block] == 0:
            del self._evictable[block]
            self._blank.append(block)

    def release_all(self) -> None:
        """Drop every reference; registered prefixes stay. Works from any state that an interrupted change left.

        A block stays registered only where hash to block and block to hash agree.
        """
        registered = {block: key for key, block in self._block_of.items() if self._hash_of[block] == key}
        blocks = range(len(self._hash_of) - 1, 0, -1)
        oldest_first = dict.fromkeys(
            block for block in (*self._evictable, *reversed(registered)) if block in registered
        )
        self._references = [0] * len(self._hash_of)
        self._hash_of = [registered.get(block) for block in range(len(self._hash_of))]
        self._block_of = {key: block for block, key in registered.items()}
        self._blank = [block for block in blocks if block not in registered]
        self._evictable = OrderedDict.fromkeys(oldest_first)

    def forget_all(self) -> None:
        """Forget every registered prefix; used blocks stay with their users, unregistered."""
        self._blank.extend(self._evictable)
        self._evictable.clear()
        self._block_of.clear()
        self._hash_of = [None] * len(self._hash_of)

    def check_integrity(self, references: Mapping[int, int]) -> None:
        """Compare every structure with the others, and the counts with `references` (block to its users).

        Raises:
            AssertionError: what is wrong; always a bug of ours.
        """
        problems = []
        blank, evictable = set(self._blank), set(self._evictable)
        used = {block for block, count in enumerate(self._references) if count}
        if 0 in blank | evictable | used:
            problems.append("the null block is in circulation")
        if len(blank) != len(self._blank):
            problems.append("a block is blank twice")
        if blank & evictable or blank & used or evictable & used:
            problems.append("a block is in two states")
        if len(blank) + len(evictable) + len(used) != self.capacity:
            problems.append(f"{len(blank)} blank + {len(evictable)} evictable + {len(used)} used != {self.capacity}")
        counted = {block: count for block, count in enumerate(self._references) if count}
        if counted != dict(references):
            problems.append(f"reference counts {counted} differ from the tables' {dict(references)}")
        registered = {key: block for block, key in enumerate(self._hash_of) if key is not None}
        if registered != self._block_of or len(registered) != sum(key is not None for key in self._hash_of):
            problems.append("hash to block and block to hash differ")
        if {block for block in evictable if self._hash_of[block] is None}:
            problems.append("an evictable block has no hash")
        if {block for block in blank if self._hash_of[block] is not None}:
            problems.append("a blank block has a hash")
        if problems:
            raise AssertionError("block pool: " + "; ".join(problems))

    def _forget(self, block: int) -> None:
        block_hash = self._hash_of[block]
        assert block_hash is not None
        del self._block_of[block_hash]
        self._hash_of[block] = None
