"""Hashes of KV blocks: chained, over everything that a block's contents depend on.

A block's KV depends on all tokens up to its end, on the items whose embeddings stand in for some of them, and on the
cache salt. So a hash covers the parent block's hash, the block's own tokens, each overlapping item with its position
relative to the block, and (in the first block, from where the chain carries it on) the request's cache salt; a part of
the request may add to them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corellm.scheduling.request import Request


def hash_block(parent: bytes, token_ids: Sequence[int], extra_keys: Iterable[bytes] = ()) -> bytes:
    """Hash one full block.

    Every field is framed by its length, so that no two different field lists can run together into the same bytes.

    Args:
        parent: hash of the block before; empty for the first.
        token_ids: the block's tokens.
        extra_keys: everything else that the block's contents depend on.
    """
    digest = sha256()
    for part in (parent, array("q", token_ids).tobytes(), *extra_keys):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def extend_block_hashes(request: Request, block_size: int, num_blocks: int) -> None:
    """Make `request.block_hashes` cover at least its first `num_blocks` blocks, all of them full."""
    hashes = request.block_hashes
    for index in range(len(hashes), num_blocks):
        start = index * block_size
        parent = hashes[-1] if hashes else b""
        tokens = request.token_ids(start, start + block_size)
        hashes.append(hash_block(parent, tokens, _extra_keys(request, start, start + block_size)))


def _extra_keys(request: Request, start: int, stop: int) -> Iterable[bytes]:
    if start == 0 and request.cache_salt is not None:
        yield b"salt"
        yield request.cache_salt.encode()
    yield from request.part.hash_keys(request, start, stop)


def item_keys(request: Request, first: int, stop: int, start: int) -> Iterable[bytes]:
    """Yield the items whose tokens are among those from `first` to `stop`, for the block that begins at `start`."""
    features = request.features
    index = bisect_right(features, first, key=lambda feature: feature.placeholder.end)
    for feature in takewhile(lambda feature: feature.placeholder.offset < stop, features[index:]):
        yield b"item"
        yield feature.identifier.encode()
        yield (feature.placeholder.offset - start).to_bytes(8, "little", signed=True)
