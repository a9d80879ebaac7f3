"""A request's adapter, for scheduling: whose cached blocks it may share, and when it has to wait.

Knows the adapter by its digest; knows no weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from corellm.prompts import LORA_KEY as KEY
from corellm.scheduling.batch import ItemSlice
from corellm.scheduling.part_around import PartAround
from corellm.scheduling.request import Request
from corellm.scheduling.request_part import PlanItems
from corellm.scheduling.step_plan import StepPlan
from corellm_lora.shelf import Shelf


@dataclass(frozen=True)
class AdapterOf(PartAround):
    """An adapter, around what else is made of the request."""

    adapter: Mapping[str, Any]
    """What `AdapterKey.read` returned."""
    most: int
    """Adapters that may run at once."""
    shelf: Shelf = field(compare=False, repr=False)
    """Where it is read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.shelf.want(self)

    def for_worker(self) -> Mapping[str, Any]:
        """See `RequestPart`."""
        return {**super().for_worker(), KEY: self.adapter}

    def is_ready(self, step: StepPlan) -> bool:
        """Whether the adapter was read; until then others go first."""
        return self.shelf.has(self.adapter, waits=not step.running) and super().is_ready(step)

    def hash_keys(self, request: Request, start: int, stop: int) -> Iterable[bytes]:
        """Yield what weights the keys and values come of, too."""
        yield from super().hash_keys(request, start, stop)
        if start == 0:  # later blocks are chained to the first
            yield KEY.encode()
            yield bytes.fromhex(self.adapter["digest"])

    def chunk(
        self, request: Request, start: int, wanted: int, step: StepPlan, plan: PlanItems
    ) -> tuple[int, list[ItemSlice]]:
        """Return no tokens while as many other adapters run as may: the request waits, and those behind it.

        Those that run end, and none of those behind it takes their place: it waits no longer than for the longest.
        """
        running = (other.part.for_worker().get(KEY) for other in step.running)  # another part may be around theirs
        others = {adapter["digest"] for adapter in running if adapter is not None} - {self.adapter["digest"]}
        return (0, []) if len(others) >= self.most else super().chunk(request, start, wanted, step, plan)
