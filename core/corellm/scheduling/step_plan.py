"""The batch of one step while the scheduler puts it together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from corellm.scheduling.batch import UNKNOWN, ItemSlice, NewSequence, ScheduledBatch, SequenceChunk
from corellm.scheduling.request import Request


@dataclass(slots=True, eq=False, kw_only=True)
class StepPlan(ScheduledBatch):
    """A batch with the chunks scheduled so far, and what is left of the token budget.

    Once sealed, `requests[i]` is the request of `chunks[i]`: an id could be reused while the step is in flight.
    """

    token_budget: int
    block_size: int
    running: Sequence[Request]
    """Requests that have blocks, those of this step among them; the scheduler's own list."""
    has_preempted: bool = False
    prefix_hashes: set[bytes] = field(default_factory=set)
    """Blocks that prefill chunks of this step compute: a waiting request that needs one of them waits a step."""
    marks: set[object] = field(default_factory=set)
    """What parts of requests note for those that come after."""
    decodes: list[tuple[SequenceChunk, Request]] = field(default_factory=list)
    drafted: list[tuple[SequenceChunk, Request]] = field(default_factory=list)
    """Decodes with drafts."""
    prefills: list[tuple[SequenceChunk, Request]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether there is no chunk."""
        return not self.decodes and not self.prefills

    def start(self, request: Request) -> None:
        """Announce a request to the worker."""
        sequence = NewSequence(
            request.request_id, request.prompt_token_ids, request.output_token_ids, request.sampling_params,
            request.features, request.stop_token_ids, request.bad_words_ids, request.prompt_task,
            request.part.for_worker(), request.cache_salt,
        )  # fmt: skip
        self.new.append(sequence)

    def add_decode(self, request: Request, block_table: list[int], notes: Sequence[Any]) -> None:
        """Schedule the last generated token, to sample the next."""
        start, tokens = request.num_computed_tokens, request.output_token_ids[-1:]
        chunk = SequenceChunk(request.request_id, start, 1, tokens, block_table, True, (), notes)
        self.decodes.append((chunk, request))
        self.token_budget -= 1

    def add_drafts(self, request: Request, drafts: list[int]) -> None:
        """Have the decode of a request check drafts of the tokens after it."""
        entry = next(entry for entry in self.decodes if entry[1] is request)
        self.decodes.remove(entry)
        chunk, _ = entry
        chunk.token_ids, chunk.num_tokens, chunk.num_drafts = [*chunk.token_ids, *drafts], 1 + len(drafts), len(drafts)
        self.drafted.append(entry)
        self.token_budget -= len(drafts)

    def add_decode_ahead(self, request: Request, block_table: list[int]) -> None:
        """Schedule the token that the step in flight samples: the worker will have it, the host does not know it."""
        start = request.num_computed_tokens + 1
        self.decodes.append((SequenceChunk(request.request_id, start, 1, [UNKNOWN], block_table, True), request))

    def add_prefill(
        self,
        request: Request,
        num_tokens: int,
        items: list[ItemSlice],
        block_table: list[int],
        notes: Sequence[Any],
    ) -> None:
        """Schedule the next `num_tokens` known tokens of a request; what its part counts, counts as well."""
        start, stop = request.num_computed_tokens, request.num_computed_tokens + num_tokens
        tokens, samples = request.token_ids(start, stop), stop == request.num_tokens
        chunk = SequenceChunk(request.request_id, start, num_tokens, tokens, block_table, samples, items, notes)
        self.prefills.append((chunk, request))
        self.token_budget = max(0, self.token_budget - num_tokens)  # a part may have it exceed the budget
        request.part.count(self)
        self.prefix_hashes.update(request.block_hashes[start // self.block_size : -(-stop // self.block_size)])

    def seal(self) -> None:
        """Order the chunks, single tokens first."""
        entries = self.decodes + self.drafted + self.prefills
        self.chunks = [chunk for chunk, _ in entries]
        self.requests = [request for _, request in entries]
