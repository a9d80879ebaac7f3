"""When the scheduler starts prompts: how many blocks to leave for running sequences, how long to wait for more prompts.

Numbers in, decisions out; no request or queue is changed here.
"""

from __future__ import annotations

from collections.abc import Callable

from corellm.engine.request import Request
from corellm.engine.request_queue import RequestQueue

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


class PromptDelay:
    """Without chunked prefill: hold prompts back for a moment, so that more of them share a step.

    A prompt step waits until `factor` times the last prompt step's duration has passed since the earliest waiting
    request arrived. A step's duration is the time until the next is scheduled. (`scheduler_delay_factor` of vLLM.)
    """

    def __init__(self, factor: float, clock: Callable[[], float]) -> None:
        self._factor = factor
        self._clock = clock
        self._now = 0.0
        self._prompt_step_began: float | None = None
        self._last_duration = 0.0

    def begin_step(self) -> None:
        """Record that a step is being scheduled, which ends the one before."""
        if self._factor:
            self._now = self._clock()
            if self._prompt_step_began is not None:
                self._last_duration = self._now - self._prompt_step_began
                self._prompt_step_began = None

    def allows(self, waiting: RequestQueue) -> bool:
        """Whether prompts may start in this step; `waiting` must not be empty."""
        return not self._factor or self._now - waiting.earliest_arrival > self._factor * self._last_duration

    def prompts_started(self) -> None:
        """Record that the step being scheduled computes prompts."""
        self._prompt_step_began = self._now
