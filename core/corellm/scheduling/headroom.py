"""When the scheduler starts prompts: how many blocks to leave for running sequences. Numbers in, decisions out.

Free blocks are left when a request is admitted beside others, so that preemptions are few: one per cent of the blocks,
doubled with each preemption of that request. After at most seven they exceed the cache; such a request is admitted only
when nothing else runs, and `is_exhausted` lets the scheduler rank it first, so that it is never preempted again. That
bounds preemptions at seven per request.
"""

from __future__ import annotations

from corellm.scheduling.request import Request

_SHARE = 100


def headroom(request: Request, capacity: int) -> int:
    """Number of a cache's blocks that must stay free when `request` is admitted beside others."""
    return -(-capacity // _SHARE) << request.num_preemptions


def is_exhausted(request: Request, capacity: int) -> bool:
    """Whether the headroom is so large that the request can only be admitted when nothing runs."""
    return headroom(request, capacity) >= capacity
