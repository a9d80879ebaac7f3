"""The adapters of running requests, beside the decoder: which are in memory, in which slots, and which rows are whose.

Knows requests by their ids and adapters by their digests; what one changes of a model, `weights` knows.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from corellm.errors import CorellmError, RequestFailedError
from corellm.prompts import LORA_KEY as KEY
from corellm.scheduling.batch import ScheduledBatch, SequenceChunk
from corellm.worker.input_batch import FlatBatch
from corellm.worker.parts.step_part import StepPart
from corellm.worker.sequence_state import SequenceState
from corellm_lora.adapter_files import AdapterFiles, Values
from corellm_lora.rows import Rows
from corellm_lora.weights import Weights

logger = logging.getLogger(__name__)


class Adapters(StepPart):
    """Has each layer compute what requests' adapters change of it.

    Args:
        weights: of adapters that run.
        device: of the model.
        most_rows: rows of the largest captured step.
        most_kept: adapters that are kept in memory after they were read.
        findings: of the model, where its terms are noted.
    """

    def __init__(
        self,
        weights: Weights,
        device: torch.device,
        most_rows: int,
        most_kept: int,
        findings: MutableMapping[str, Any],
    ) -> None:
        self._weights, self._most_kept, self._findings = weights, most_kept, findings
        self._captured = Rows(torch.zeros(max(2, most_rows), dtype=torch.int64, device=device), {})
        """The slot of each row, for captured steps."""
        self._laid_out = weights.embedded = weights.decoded = weights.scored = self._captured
        self._kept: OrderedDict[str, Mapping[str, Values]] = OrderedDict()
        """Tensors that were read, by digest, those that were needed last at the end."""
        self._free = list(range(1, weights.num_slots))
        self._slot_of: OrderedDict[str, int] = OrderedDict()
        """Slots by digest; of adapters without a request, the one that was needed last at the end."""
        self._users: dict[str, str] = {}
        """Digests by request."""
        self._note_terms()

    def begin(self, batch: ScheduledBatch) -> Mapping[str, CorellmError]:
        """Put the adapters of new requests into slots; see `StepPart`."""
        self._weights.targets.close()
        for request_id in batch.released:
            self._users.pop(request_id, None)
        failed: dict[str, CorellmError] = {}
        for sequence in batch.new:
            adapter = sequence.part.get(KEY)
            if adapter is None:
                continue
            try:
                self._settle(adapter)
            except CorellmError as error:
                failed[sequence.request_id] = error
            else:
                self._users[sequence.request_id] = adapter["digest"]
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
        try:
            yield {}
        finally:
            self._weights.decoded = self._captured

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

    def forget(self) -> None:
        """Drop all requests; adapters stay in their slots."""
        self._users.clear()

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
            values = self._read(adapter)
            slot = self._free.pop() if self._free else self._leave_slot()
            try:
                self._weights.fill(slot, values)
            except torch.OutOfMemoryError as error:
                self._free.append(slot)
                raise RequestFailedError(
                    f"LoRA adapter {adapter['name']!r:.100} replaces whole modules, for which the device has no memory "
                    "left; lower gpu_memory_utilization"
                ) from error
            self._slot_of[digest] = slot
        self._slot_of.move_to_end(digest)

    def _leave_slot(self) -> int:
        """Return the slot of an adapter that no request has: fewer others run than there are slots."""
        in_use = set(self._users.values())
        return self._slot_of.pop(next(digest for digest in self._slot_of if digest not in in_use))

    def _read(self, adapter: Mapping[str, str]) -> Mapping[str, Values]:
        """Return an adapter's tensors, from memory or from its files.

        Raises:
            RequestFailedError: the files are not what they were when the request was prepared.
        """
        digest, name = adapter["digest"], adapter["name"]
        if digest not in self._kept:
            try:
                files = AdapterFiles.opened(name, adapter["path"], self._terms)
                values = files.values()
            except (CorellmError, OSError) as error:
                raise RequestFailedError(f"LoRA adapter {name!r:.100} cannot be read any more: {error}") from error
            if files.digest.hex() != digest:
                raise RequestFailedError(f"LoRA adapter {name!r:.100} has changed; send the request again")
            logger.info("read the LoRA adapter %r from %s", name, adapter["path"])
            self._kept[digest] = values
            if len(self._kept) > self._most_kept:
                self._kept.popitem(last=False)
        self._kept.move_to_end(digest)
        return self._kept[digest]
