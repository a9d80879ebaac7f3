"""The states of all sequences, and the modules that keep them: a step's flat batch is split by sequences there.

Decodes of many sequences are one call of a module, a prompt's chunk is one call of its own. Knows sequences by id and
their chunks by number; knows neither blocks nor attention.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from corellm.errors import ContractError, CorellmError
from corellm.scheduling.batch import ScheduledBatch, SequenceChunk
from corellm.worker.input_batch import FlatBatch
from corellm.worker.parts.step_part import StepPart
from corellm.worker.sequence_state import SequenceState
from corellm_recurrent.mixer import Mixer
from corellm_recurrent.rows import DUMMY, NO_ONE, Rows
from corellm_recurrent.segments import calls
from corellm_recurrent.snapshots import Snapshot


@dataclass(frozen=True)
class StateLayout:
    """Shape and type of one state of a sequence."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes for one sequence."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class _Prefill:
    """A chunk in the flat batch that runs alone, or a segment of it."""

    first: int
    last: int
    """The token behind it."""
    read: Tensor | None
    """`[1]`: the row of its state; None where its sequence begins."""
    write: Tensor
    """`[1]`, or `[2]` with a snapshot."""


@dataclass(frozen=True)
class _Round:
    """Single tokens of different sequences that have begun: they run together."""

    places: Tensor | slice
    """`[num_seqs]`: which tokens of the flat batch."""
    read: Tensor
    """`[num_seqs]`: rows."""
    write: Tensor


@dataclass(frozen=True)
class _Step:
    """What the modules need to know of a step."""

    num_tokens: int
    rounds: list[_Round]
    """Of the leading single tokens: each sequence's draft is in the round after the token before it."""
    order: Tensor | None
    """`[number of single tokens]`: where in the rounds, one after another, each token is; None for one round."""
    prefills: list[_Prefill]


class RecurrentStates(StepPart):
    """State rows of all modules, allocated once. The modules run transformers' code only inside `running`.

    Args:
        mixers: the modules; their `forward` is replaced.
        layouts: of each module's states.
        rows: whose states they are.
        device: of the model.
        segment: tokens of a segment of prompts; 0 if a chunk is one call.
        num_snapshots: rows for snapshots, behind those of sequences.
    """

    def __init__(
        self,
        mixers: Sequence[Mixer],
        layouts: Sequence[Sequence[StateLayout]],
        rows: Rows,
        device: torch.device,
        segment: int = 0,
        num_snapshots: int = 0,
    ) -> None:
        self.rows, self.segment = rows, segment
        self.num_snapshots = num_snapshots if segment else 0
        self._device, num_rows = device, self.rows.count + self.num_snapshots
        self._pools = [
            [
                torch.full((num_rows, *state.shape), 0, dtype=state.dtype, device=device)  # its memory is taken
                for state in of_mixer
            ]
            for of_mixer in layouts
        ]
        self._parked: dict[str, dict[int, list[list[Tensor]]]] = {}
        """States in host memory of sequences that come back: by number of tokens, tensors as in the pools."""
        self._captured = self._indices([]).view(2, 0)
        """Rows to read and to write of captured steps, `[2, num_rows]`; those of padding are no one's."""
        self._laid_out: _Step
        self._step: _Step | None = None
        for mixer, pools in zip(mixers, self._pools, strict=True):
            mixer.module.forward = partial(self._forward, mixer, pools)

    @property
    def num_parked(self) -> int:
        """Sequences whose state is in host memory."""
        return len(self._parked)

    def lay_out(self, batch: FlatBatch, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]) -> FlatBatch:
        """Choose rows of a step, also where captured steps look for them."""
        self.rows.begin_step()
        self._laid_out = step = self._plan(chunks, states)
        if self._is_captured(step):
            (single,) = step.rounds
            self._captured[:, : step.num_tokens] = torch.stack([single.read, single.write])
            self._captured[:, step.num_tokens :] = NO_ONE
        return batch

    def _is_captured(self, step: _Step) -> bool:
        """Whether captured steps do all of a step: one token each of sequences that have begun."""
        return len(step.rounds) == 1 and not step.prefills and step.num_tokens <= self._captured.shape[1]

    def is_replayable(self, states: Sequence[SequenceState]) -> bool:
        """Whether the step that was laid out has one token each of sequences that have begun."""
        return self._is_captured(self._laid_out)

    def reserve_captured(self, num_rows: int) -> None:
        """Take memory for the rows of captured steps."""
        self._captured = self._indices([NO_ONE] * 2 * num_rows).view(2, num_rows)

    @contextmanager
    def running(
        self, batch: FlatBatch, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState] = ()
    ) -> Iterator[Mapping[str, Any]]:
        """Inside the block, run the flat batch that was laid out; `commit` afterwards, or states stay as they were."""
        with self._stepping(self._laid_out):
            yield {}

    @contextmanager
    def capturing(self, batch: FlatBatch) -> Iterator[Mapping[str, Any]]:
        """Inside the block, run single tokens on the rows that `lay_out` writes down."""
        num_seqs = len(batch.input_ids)
        with self._stepping(_Step(num_seqs, [_Round(slice(0, num_seqs), *self._captured[:, :num_seqs])], None, [])):
            yield {}

    @contextmanager
    def _stepping(self, step: _Step) -> Iterator[None]:
        self._step = step
        try:
            yield
        finally:
            self._step = None

    def begin(self, batch: ScheduledBatch) -> Mapping[str, CorellmError]:
        """Drop the states of sequences that are released; keep those of swapped ones in host memory."""
        self.release(batch.released, batch.swapped)
        return {}

    def commit(self) -> None:
        """Take over the states after the last step."""
        self.rows.commit()

    def release(self, request_ids: Sequence[str], swapped: Sequence[str]) -> None:
        """Drop sequences' states; those of `swapped` go to host memory, and are back when their sequence runs."""
        for request_id in request_ids:
            self._parked.pop(request_id, None)
            held = self.rows.release(request_id)
            if held and request_id in swapped:
                self._parked[request_id] = {one.num_tokens: self._copied(one.row) for one in held}

    def forget(self) -> None:
        """Drop every state, after a step was interrupted."""
        self.rows.release_all()
        self._parked.clear()

    def _copied(self, row: int) -> list[list[Tensor]]:
        return [[pool[row].to("cpu", copy=True) for pool in pools] for pools in self._pools]

    def _plan(self, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]) -> _Step:
        singles: list[list[tuple[int, int, int]]] = []  # by round: place, row to read, row to write
        prefills: list[_Prefill] = []
        first, number, before = 0, 0, None
        for place, chunk in enumerate(chunks):
            self._bring_back(chunk)
            snapshots = {one.num_tokens: self.rows.count + one.row for one in chunk.notes if isinstance(one, Snapshot)}
            read = snapshots.get(chunk.start)
            if read is None:
                read = self.rows.read(chunk.request_id, chunk.start)
            write = self.rows.write(chunk.request_id, chunk.start + chunk.num_tokens)
            if chunk.num_tokens == 1 and read is not None and not prefills:
                number, before = number + 1 if chunk.request_id == before else 0, chunk.request_id
                if number == len(singles):
                    singles.append([])
                singles[number].append((first, read, write))
            else:
                is_dummy = chunk.request_id == DUMMY or not self.segment
                prompt_len = sys.maxsize if is_dummy else len(states[place].sequence.prompt_token_ids)
                stop, begin = chunk.start + chunk.num_tokens, first - chunk.start
                at_once = self.segment if self._device.type == "cpu" else 0  # else its libraries round by size anyway
                for start, end in calls(chunk.start, stop, prompt_len, at_once, snapshots):
                    own = None if read is None else self._indices([read])
                    rows = self._indices([write, snapshots[end]] if end in snapshots else [write])
                    prefills.append(_Prefill(begin + start, begin + end, own, rows))
                    read = write
            first += chunk.num_tokens
        return _Step(first, *self._rounds(singles), prefills)

    def _rounds(self, singles: Sequence[Sequence[tuple[int, int, int]]]) -> tuple[list[_Round], Tensor | None]:
        """Return the rounds of single tokens, and where in them each is."""
        columns = [[self._indices([*column]) for column in zip(*of_round, strict=True)] for of_round in singles]
        if len(columns) > 1:
            return [_Round(*each) for each in columns], torch.cat([places for places, *_ in columns]).argsort()
        return [_Round(slice(0, len(places)), read, write) for places, read, write in columns], None

    def _bring_back(self, chunk: SequenceChunk) -> None:
        if chunk.request_id not in self._parked:
            return
        states = self._parked.pop(chunk.request_id)[chunk.start]
        row = self.rows.place(chunk.request_id, chunk.start)
        for pools, of_mixer in zip(self._pools, states, strict=True):
            for pool, state in zip(pools, of_mixer, strict=True):
                pool[row].copy_(state)

    def _indices(self, rows: list[int]) -> Tensor:
        return torch.tensor(rows, dtype=torch.long, device=self._device)

    def _forward(self, mixer: Mixer, pools: Sequence[Tensor], /, *args: Any, **kwargs: Any) -> Tensor:
        """Take the place of a module's `forward`: from `[1, num_tokens, width]` to its output of the same length."""
        hidden, shared = mixer.arguments(args, kwargs)
        step = self._step
        if step is None or hidden.shape[:2] != (1, step.num_tokens):
            now = "outside of a step" if step is None else f"in a step of {step.num_tokens} tokens"
            raise ContractError(f"{mixer} was run on {list(hidden.shape)} {now}: it keeps sequences' states")
        parts = [
            _run(mixer, pools, hidden[0][single.places, None], single.read, single.write, shared).transpose(0, 1)
            for single in step.rounds
        ]
        if step.order is not None:
            parts = [torch.cat(parts, dim=1).index_select(1, step.order)]
        for prefill in step.prefills:
            tokens = hidden[:, prefill.first : prefill.last]
            parts.append(_run(mixer, pools, tokens, prefill.read, prefill.write, shared))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _run(
    mixer: Mixer, pools: Sequence[Tensor], hidden: Tensor, read: Tensor | None, write: Tensor, shared: dict[str, Any]
) -> Tensor:
    """Run a module on `[batch, num_tokens, width]` with the states of some rows, and write the new ones to others.

    What is of one sequence may be written to several.
    """
    states = None if read is None else [pool.index_select(0, read) for pool in pools]
    output, new = mixer.run(hidden, states, shared)
    for pool, state in zip(pools, new, strict=True):
        pool.index_copy_(0, write, state.to(pool.dtype).expand(len(write), *state.shape[1:]))
    return output
