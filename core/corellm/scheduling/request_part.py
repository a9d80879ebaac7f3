"""What a feature makes of one request while it is scheduled. Most requests have none.

A part owns what it needs to know of its request; the scheduler, admission and the encoder planner ask it. A request has
one; that of an extension holds the other (`part_around.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from corellm.scheduling.batch import ItemSlice, item_slices
from corellm.scheduling.block_hash import item_keys

if TYPE_CHECKING:
    from corellm.errors import RequestError
    from corellm.scheduling.admission import AdmissionLimits
    from corellm.scheduling.request import Request
    from corellm.scheduling.step_plan import StepPlan

PlanItems = Callable[["Request", int, int], tuple[int, list[ItemSlice]]]
"""`EncoderPlanner.plan`."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class RequestPart:
    """Makes nothing of a request; the base of parts. Methods are in the order in which a request runs."""

    items_in_prompt: ClassVar[bool] = True
    """Whether the request's own tokens take the embeddings of its items."""

    def fresh(self) -> Self:
        """Return the part of another request with the same prompt."""
        return self

    def stated_tokens(self, request: Request) -> Sequence[int]:
        """Return the tokens that the user's prompt has."""
        return request.prompt_token_ids

    def for_worker(self) -> Mapping[str, Any]:
        """Return what parts of the worker must know, as plain data, by the names by which they look for it."""
        return _NOTHING

    def num_slots(self, block_size: int) -> int:
        """Return how many slots of the KV cache the request takes beside its tokens'."""
        return 0

    def refusal(self, request: Request, limits: AdmissionLimits) -> RequestError | None:
        """Return the error for a request that can never run; None if it can."""
        return None

    def counts(self, request: Request) -> tuple[int, int]:
        """Return the tokens of an admitted request, and how many of them were cached, for metrics."""
        return request.num_tokens, request.num_computed_tokens

    def is_ready(self, step: StepPlan) -> bool:
        """Whether a request that waits can start; until then those behind it are admitted, and it is asked again.

        Without other requests that run, steps are planned one after another: a part may wait here for a moment.
        """
        return True

    def hash_keys(self, request: Request, start: int, stop: int) -> Iterable[bytes]:
        """Yield what the contents of the block `[start, stop)` depend on beside its tokens and the cache salt."""
        return item_keys(request, start, stop, start)

    def chunk(
        self, request: Request, start: int, wanted: int, step: StepPlan, plan: PlanItems
    ) -> tuple[int, list[ItemSlice]]:
        """Return how many tokens from `start` on make a chunk, and the items they take embeddings of.

        `wanted` tokens fit the step so far; `plan` cuts a number of tokens to what encoders allow.
        """
        return plan(request, start, wanted) if request.features else (wanted, [])

    def items_needed(self, request: Request, start: int, stop: int) -> Iterator[ItemSlice]:
        """Yield what the tokens `[start, stop)` take of each item."""
        return item_slices(request.features, start, stop)

    def count(self, step: StepPlan) -> None:
        """Count what a chunk takes of a step beside its tokens."""

    def has_taken(self, request: Request, index: int) -> bool:
        """Whether an item's embeddings are not needed any more, as all that takes them is computed."""
        return request.features[index].placeholder.end <= request.num_computed_tokens

    def restart(self) -> None:
        """Note that nothing of the request is computed any more."""


PLAIN = RequestPart()
"""The part of requests without one."""
