"""Segments of a prompt: stretches of fixed length that a module with a state always runs in one call.

A module computes several tokens at once otherwise than one by one, with other rounding. So which of them it gets in one
call must not depend on what else a step has room for: a chunk ends where a segment does, or with the prompt. Tokens
behind the prompt run one by one, as they came, also when they are computed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corellm.scheduling.part_around import PartAround
from corellm.scheduling.request_part import PlanItems

if TYPE_CHECKING:
    from corellm.scheduling.batch import ItemSlice
    from corellm.scheduling.request import Request
    from corellm.scheduling.step_plan import StepPlan


def calls(
    start: int, stop: int, prompt_len: int, segment: int, borders: Iterable[int] = ()
) -> Iterator[tuple[int, int]]:
    """Yield the calls that compute a sequence's tokens `[start, stop)`, as the first token of each and that behind it.

    Args:
        start, stop: tokens.
        prompt_len: tokens of its prompt.
        segment: tokens of a segment; 0 if all go into one call.
        borders: at which a call ends in any case.
    """
    while start < stop:
        end = min((border for border in borders if start < border < stop), default=stop)
        if segment:
            end = min(end, prompt_len, start - start % segment + segment) if start < prompt_len else start + 1
        yield start, end
        start = end


@dataclass(frozen=True)
class Segmented(PartAround):
    """Ends a request's chunks where segments end."""

    segment: int

    def chunk(
        self, request: Request, start: int, wanted: int, step: StepPlan, plan: PlanItems
    ) -> tuple[int, list[ItemSlice]]:
        """Return a chunk of whole segments: the first prompt of a step may exceed `wanted` to the end of one.

        Only where a segment's items do not fit together, and nothing else runs or all others came later, is it cut:
        others may come as long as it waits.
        """
        whole = self._whole(request, start, wanted, may_extend=not step.prefills)
        num_tokens, items = self.inner.chunk(request, start, whole, step, plan)
        if num_tokens < whole:  # an encoder has to wait
            whole = self._whole(request, start, num_tokens, may_extend=False)
            if whole or not (step.is_empty or request is step.running[0]):
                num_tokens, items = self.inner.chunk(request, start, whole, step, plan)
        return num_tokens, items

    def _whole(self, request: Request, start: int, num_tokens: int, *, may_extend: bool) -> int:
        """Return how many tokens from `start` on end a segment or lie behind the prompt: at most `num_tokens`, or one
        segment.
        """
        stop, prompt_len = start + num_tokens, request.num_prompt_tokens
        if not num_tokens or stop >= prompt_len:
            return num_tokens
        border = stop - stop % self.segment
        if border > start:
            return border - start
        return min(border + self.segment, prompt_len) - start if may_extend else 0
