"""When the scheduler starts prompts: how many blocks to leave for running sequences. Numbers in, decisions out."""

from __future__ import annotations

from corellm.scheduling.request import Request

_WATERMARK_SHARE = 100


class Headroom:
    """Free blocks to leave for running sequences when another one is admitted, so that preemptions are few.

    One per cent of the blocks, doubled with each preemption of the request to be admitted. After at most seven the
    headroom exceeds the cache; such a request is admitted only when nothing else runs, and `is_exhausted` lets the
    scheduler rank it first, so that it is never preempted again. That bounds preemptions at seven per request.

    Args:
        capacity: blocks in the cache.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._watermark = -(-capacity // _WATERMARK_SHARE)

    def blocks(self, request: Request) -> int:
        """Number of blocks that must stay free when `request` is admitted beside others."""
        return self._watermark << request.num_preemptions

    def is_exhausted(self, request: Request) -> bool:
        """Whether the headroom is so large that the request can only be admitted when nothing runs."""
        return self.blocks(request) >= self._capacity
