"""The adapters of running requests, beside the decoder: which are in memory, in which slots, and which rows are whose.

Knows requests by their ids and adapters by their digests; how a product is made, `low_rank` knows.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from corellm.errors import CorellmError, RequestFailedError
from corellm.modelling.linear_additions import AddLowRank, LinearAdditions
from corellm.plugin.extensions import first_result
from corellm.prompts import LORA_KEY as KEY
from corellm.scheduling.batch import ScheduledBatch, SequenceChunk
from corellm.system.transfers import upload
from corellm.worker.input_batch import FlatBatch
from corellm.worker.parts.step_part import StepPart
from corellm.worker.sequence_state import SequenceState
from corellm_lora.adapter_files import AdapterFiles, Factors
from corellm_lora.low_rank import Slots, add_low_rank
from corellm_lora.terms import Terms

logger = logging.getLogger(__name__)


class Adapters(StepPart):
    """Adds what requests' adapters add, in every layer of the decoder.

    Args:
        terms: of the model.
        linears: its layers.
        device, dtype: of the model.
        most_rows: rows of the largest captured step.
        most_kept: adapters that are kept in memory after they were read.
    """

    def __init__(
        self,
        terms: Terms,
        linears: LinearAdditions,
        device: torch.device,
        dtype: torch.dtype,
        most_rows: int,
        most_kept: int,
    ) -> None:
        self._terms, self._most_kept = terms, most_kept
        num_slots = terms.max_loras + 1
        self._slots = {
            name: Slots(num_slots, terms.max_rank, inputs, outputs, dtype, device)
            for name, (inputs, outputs) in terms.layers.items()
        }
        self._captured = torch.zeros(most_rows, dtype=torch.int64, device=device)
        """The slot of each row, for captured steps."""
        self._laid_out = self._slot_of_row = self._captured
        self._kept: OrderedDict[str, Mapping[str, Factors]] = OrderedDict()
        """Factors that were read, by digest, the one that was needed last at the end."""
        self._free = list(range(1, num_slots))
        self._slot_of: OrderedDict[str, int] = OrderedDict()
        """Slots by digest; of adapters without a request, the one that was needed last at the end."""
        self._users: dict[str, str] = {}
        """Digests by request."""
        offered = first_result("register_low_rank", callable, device=device, dtype=dtype)
        self._add_low_rank: AddLowRank = offered or add_low_rank
        for name, slots in self._slots.items():
            linears.add(name, partial(self._add, slots))

    def begin(self, batch: ScheduledBatch) -> Mapping[str, CorellmError]:
        """Put the adapters of new requests into slots; see `StepPart`."""
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

    def lay_out(self, batch: FlatBatch, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]) -> FlatBatch:
        """Note each row's slot, also where captured steps look for it."""
        named = [state.sequence.part.get(KEY) for state in states]
        slots = [0 if adapter is None else self._slot_of[adapter["digest"]] for adapter in named]
        rows = np.repeat(np.array(slots, dtype=np.int64), [chunk.num_tokens for chunk in chunks])
        self._laid_out = upload(rows, self._captured.device)
        if len(rows) <= len(self._captured):
            self._captured[: len(rows)].copy_(self._laid_out)
            self._captured[len(rows) :].zero_()
        return batch

    @contextmanager
    def running(
        self, batch: FlatBatch, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]
    ) -> Iterator[Mapping[str, Any]]:
        """Run the decoder on the rows that were laid out: this step is no captured one."""
        self._slot_of_row = self._laid_out
        try:
            yield {}
        finally:
            self._slot_of_row = self._captured

    def forget(self) -> None:
        """Drop all requests; adapters stay in their slots."""
        self._users.clear()

    def _add(self, slots: Slots, x: Tensor, output: Tensor) -> None:
        self._add_low_rank(x, output, slots.a, slots.b, slots.ranks, self._slot_of_row[: len(x)])

    def _settle(self, adapter: Mapping[str, str]) -> None:
        """Put an adapter into a slot, if it is in none.

        Raises:
            RequestFailedError: it cannot be read.
        """
        digest = adapter["digest"]
        if digest not in self._slot_of:
            factors = self._read(adapter)
            slot = self._free.pop() if self._free else self._leave_slot()
            for name, slots in self._slots.items():
                if name in factors:
                    slots.fill(slot, *factors[name])
                else:
                    slots.clear(slot)
            self._slot_of[digest] = slot
        self._slot_of.move_to_end(digest)

    def _leave_slot(self) -> int:
        """Return the slot of an adapter that no request has: fewer others run than there are slots."""
        in_use = set(self._users.values())
        return self._slot_of.pop(next(digest for digest in self._slot_of if digest not in in_use))

    def _read(self, adapter: Mapping[str, str]) -> Mapping[str, Factors]:
        """Return an adapter's factors, from memory or from its files.

        Raises:
            RequestFailedError: the files are not what they were when the request was prepared.
        """
        digest, name = adapter["digest"], adapter["name"]
        if digest not in self._kept:
            try:
                files = AdapterFiles.opened(name, adapter["path"], self._terms)
                factors = files.factors()
            except (CorellmError, OSError) as error:
                raise RequestFailedError(f"LoRA adapter {name!r:.100} cannot be read any more: {error}") from error
            if files.digest.hex() != digest:
                raise RequestFailedError(f"LoRA adapter {name!r:.100} has changed; send the request again")
            logger.info("read the LoRA adapter %r from %s", name, adapter["path"])
            self._kept[digest] = factors
            if len(self._kept) > self._most_kept:
                self._kept.popitem(last=False)
        self._kept.move_to_end(digest)
        return self._kept[digest]
