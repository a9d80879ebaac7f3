"""The adapters of running requests, beside the decoder: which are in memory, in which slots, and which rows are whose.

Knows requests by their ids and adapters by their digests; what one changes of a model, `weights` knows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from corellm.engine.metrics import Counter, Gauge, Metric
from corellm.errors import CorellmError, InvalidParameterError, RequestFailedError
from corellm.prompts import LORA_KEY as KEY
from corellm.scheduling.batch import ScheduledBatch, SequenceChunk
from corellm.worker.input_batch import FlatBatch
from corellm.worker.parts.step_part import StepPart
from corellm.worker.sequence_state import SequenceState
from corellm_lora.rows import Rows
from corellm_lora.shelf import Shelf
from corellm_lora.weights import Weights


class Adapters(StepPart):
    """Has each layer compute what requests' adapters change of it.

    Args:
        weights: of adapters that run.
        device: of the model.
        most_rows: rows of the largest captured step.
        most_kept: adapters that are kept in memory after they were read.
        findings: of the model, where its terms are noted.
        shelf: where adapters are before they run.
    """

    def __init__(
        self,
        weights: Weights,
        device: torch.device,
        most_rows: int,
        most_kept: int,
        findings: MutableMapping[str, Any],
        shelf: Shelf,
    ) -> None:
        self._weights, self._findings, self._shelf = weights, findings, shelf
        self._captured = Rows(torch.zeros(max(2, most_rows), dtype=torch.int64, device=device), {})
        """The slot of each row, for captured steps."""
        self._laid_out = weights.embedded = weights.decoded = weights.scored = self._captured
        self._free = list(range(1, weights.num_slots))
        self._slot_of: OrderedDict[str, int] = OrderedDict()
        """Slots by digest; of adapters without a request, the one that was needed last at the end."""
        self._users: dict[str, str] = {}
        """Digests by request."""
        self.held: dict[int, Mapping[str, str]] = {}
        """Adapters that were added, by number."""
        self.pinned: set[int] = set()
        self._num_replaced, self._most_kept = 0, most_kept
        self._note_terms()
        shelf.open(lambda: self._terms, most_kept, lambda digest: digest in self._slot_of)

    def allocate(self, num_blocks: int) -> None:
        """Note what ran in the steps of the load."""
        self._note_terms()

    def begin(self, batch: ScheduledBatch) -> Mapping[str, CorellmError]:
        """Put the adapters of new requests into slots; see `StepPart`."""
        self._weights.targets.close()
        for request_id in batch.released:
            self._users.pop(request_id, None)
        failed: dict[str, CorellmError] = {}
        new = {sequence.request_id: sequence.part[KEY] for sequence in batch.new if KEY in sequence.part}
        self._users |= {request_id: adapter["digest"] for request_id, adapter in new.items()}
        for request_id, adapter in new.items():
            try:
                self._settle(adapter)
            except CorellmError as error:
                failed[request_id] = error
                del self._users[request_id]
        return failed

    def encoding(self, variant: str) -> AbstractContextManager[object]:
        """Let encoders run with an adapter; with none for items of no variant."""
        if not variant:
            return self._encoding_alone()
        if variant not in self._slot_of:
            raise RequestFailedError("the item's LoRA adapter is not in memory")
        return self._weights.encoding(self._slot_of[variant])

    @contextmanager
    def _encoding_alone(self) -> Iterator[None]:
        with self._weights.encoding(0):
            yield
        if self._weights.targets.is_watching:
            self._note_terms()

    def lay_out(self, batch: FlatBatch, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]) -> FlatBatch:
        """Note each row's slot, also where captured steps look for it."""
        slots = np.array([self._slot(state) for state in states], dtype=np.int64)
        rows = np.repeat(slots, [chunk.num_tokens for chunk in chunks])
        self._laid_out = self._weights.embedded = self._rows(rows)
        captured = self._captured.slots
        if len(rows) <= len(captured):
            captured[: len(rows)].copy_(self._laid_out.slots)
            captured[len(rows) :].zero_()
        return batch

    def is_replayable(self, states: Sequence[SequenceState]) -> bool:
        """Whether adapters of sequences have factors alone: the rest is computed for the rows of each adapter apart."""
        changed = self._weights.changed
        return not changed or not any(self._slot(state) in changed for state in states)

    @contextmanager
    def running(
        self, batch: FlatBatch, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]
    ) -> Iterator[Mapping[str, Any]]:
        """Run the decoder on the rows that were laid out: this step is no captured one."""
        self._weights.decoded = self._laid_out
        self._weights.targets.num_tokens = sum(chunk.num_tokens for chunk in chunks)
        try:
            yield {}
        finally:
            self._weights.decoded, self._weights.targets.num_tokens = self._captured, None

    @contextmanager
    def scoring(self, states: Sequence[SequenceState]) -> Iterator[None]:
        """Run the output layer on rows of these sequences."""
        slots = [self._slot(state) for state in states]
        if len(slots) == 1:
            self._weights.scored = Rows.all_of(slots[0], self._weights.changed, self._captured.slots.device)
        else:
            self._weights.scored = self._rows(np.array(slots, dtype=np.int64))
        try:
            yield
        finally:
            self._weights.scored = self._captured

    def metrics(self) -> Sequence[Metric]:
        """Return how many adapters there are, and how often one came and left."""
        running = set(self._users.values())
        return [
            Gauge("corellm:lora_adapters_running", len(running)),
            Gauge("corellm:lora_adapters_waiting", len(self._shelf.wanted - running)),
            Gauge("corellm:lora_adapters_loaded", len(self._slot_of)),
            Gauge("corellm:lora_adapters_kept", len(self._shelf)),
            Counter("corellm:lora_adapters_read", self._shelf.num_read),
            Counter("corellm:lora_adapters_replaced", self._num_replaced),
        ]

    def hold(self, number: int, adapter: Mapping[str, str]) -> bool:
        """Read an adapter into memory under a number; returns whether it was not there by it.

        One that is in the place of a pinned one is pinned.

        Raises:
            RequestFailedError: it cannot be read.
        """
        if number in self.held and self.held[number]["digest"] == adapter["digest"]:
            return False
        self._shelf.take(adapter)
        is_pinned = number in self.pinned
        self.drop(number)
        self.held[number] = adapter
        if is_pinned:
            self.pin(number)
        return True

    def drop(self, number: int) -> bool:
        """Forget what was added by a number; returns whether there was something."""
        dropped = self.held.pop(number, None)
        if dropped is None:
            return False
        self.pinned.discard(number)
        self._shelf.keep(self._digests(self.pinned))
        if dropped["digest"] not in self._digests(self.held):
            self._shelf.drop(dropped["digest"])
        return True

    def pin(self, number: int) -> None:
        """Keep what was added by a number in memory.

        Raises:
            InvalidParameterError: nothing was, or no more can be kept.
            RequestFailedError: it was left for others meanwhile, and cannot be read again.
        """
        if number not in self.held:
            raise InvalidParameterError(f"there is no LoRA adapter {number!r:.100}; add_lora first", param="lora_id")
        digests = self._digests((*self.pinned, number))
        if len(digests) > self._most_kept:
            raise InvalidParameterError(
                f"{len(digests) - 1} LoRA adapters are kept already, as many as may be; raise max_cpu_loras, or remove "
                "one",
                param="lora_id",
            )
        self._shelf.take(self.held[number])
        self.pinned.add(number)
        self._shelf.keep(digests)

    def _digests(self, numbers: Iterable[int]) -> set[str]:
        return {self.held[number]["digest"] for number in numbers}

    def forget(self) -> None:
        """Drop all requests; adapters stay in their slots, but for those whose contents depend on the model's weights.

        These are read again when needed.
        """
        self._users.clear()
        stale = self._weights.forget_base()
        for digest in [digest for digest, slot in self._slot_of.items() if slot in stale]:
            del self._slot_of[digest]
        self._free = sorted({*range(1, self._weights.num_slots)}.difference(self._slot_of.values()))

    def _slot(self, state: SequenceState) -> int:
        adapter = state.sequence.part.get(KEY)
        return 0 if adapter is None else self._slot_of[adapter["digest"]]

    def _rows(self, slots: NDArray[np.int64]) -> Rows:
        return Rows.of(slots, self._weights.changed, self._captured.slots.device)

    def _note_terms(self) -> None:
        self._terms = self._weights.targets.terms()
        self._terms.note(self._findings)

    def _settle(self, adapter: Mapping[str, str]) -> None:
        """Put an adapter into a slot, if it is in none.

        Raises:
            RequestFailedError: it cannot be read.
        """
        digest = adapter["digest"]
        if digest not in self._slot_of:
            values = self._shelf.take(adapter)
            if not self._free:
                self._free.append(self._leave_slot())
            try:
                self._weights.fill(self._free[-1], values)  # free until it is whole
            except torch.OutOfMemoryError as error:
                raise RequestFailedError(
                    f"LoRA adapter {adapter['name']!r:.100} replaces whole modules, for which the device has no memory "
                    "left; lower gpu_memory_utilization"
                ) from error
            self._slot_of[digest] = self._free.pop()
        self._slot_of.move_to_end(digest)

    def _leave_slot(self) -> int:
        """Return the slot of an adapter that no request has: fewer others run than there are slots."""
        in_use = set(self._users.values())
        self._num_replaced += 1
        return self._slot_of.pop(next(digest for digest in self._slot_of if digest not in in_use))
