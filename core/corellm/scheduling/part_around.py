"""A part of a request around another one: what an extension makes of a request that may have a part already.

Knows the other part only by what all parts have; not around one of a prompt that takes no items, whose blocks need to
know it itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from corellm.errors import ContractError
from corellm.scheduling.batch import ItemSlice
from corellm.scheduling.request_part import PlanItems, RequestPart

if TYPE_CHECKING:
    from corellm.errors import RequestError
    from corellm.scheduling.admission import AdmissionLimits
    from corellm.scheduling.request import Request
    from corellm.scheduling.step_plan import StepPlan


@dataclass(frozen=True)
class PartAround(RequestPart):
    """Asks the inner part everything; a subclass overrides what it adds to."""

    inner: RequestPart

    def __post_init__(self) -> None:
        if not self.inner.items_in_prompt:
            raise ContractError(
                f"{type(self).__name__} cannot be around {type(self.inner).__name__}, as blocks of a prompt that takes "
                "no items must know its part: refuse such requests where they are prepared"
            )

    def fresh(self) -> Self:
        """See `RequestPart`."""
        return replace(self, inner=self.inner.fresh())

    def stated_tokens(self, request: Request) -> Sequence[int]:
        """See `RequestPart`."""
        return self.inner.stated_tokens(request)

    def for_worker(self) -> Mapping[str, Any]:
        """See `RequestPart`."""
        return self.inner.for_worker()

    def num_slots(self, block_size: int) -> int:
        """See `RequestPart`."""
        return self.inner.num_slots(block_size)

    def refusal(self, request: Request, limits: AdmissionLimits) -> RequestError | None:
        """See `RequestPart`."""
        return self.inner.refusal(request, limits)

    def counts(self, request: Request) -> tuple[int, int]:
        """See `RequestPart`."""
        return self.inner.counts(request)

    def is_ready(self, step: StepPlan) -> bool:
        """See `RequestPart`."""
        return self.inner.is_ready(step)

    def hash_keys(self, request: Request, start: int, stop: int) -> Iterable[bytes]:
        """See `RequestPart`."""
        return self.inner.hash_keys(request, start, stop)

    def chunk(
        self, request: Request, start: int, wanted: int, step: StepPlan, plan: PlanItems
    ) -> tuple[int, list[ItemSlice]]:
        """See `RequestPart`."""
        return self.inner.chunk(request, start, wanted, step, plan)

    def items_needed(self, request: Request, start: int, stop: int) -> Iterator[ItemSlice]:
        """See `RequestPart`."""
        return self.inner.items_needed(request, start, stop)

    def count(self, step: StepPlan) -> None:
        """See `RequestPart`."""
        self.inner.count(step)

    def has_taken(self, request: Request, index: int) -> bool:
        """See `RequestPart`."""
        return self.inner.has_taken(request, index)

    def restart(self) -> None:
        """See `RequestPart`."""
        self.inner.restart()
