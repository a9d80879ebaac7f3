"""The batch of one step while the scheduler puts it together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from corellm.engine.request import Request
from corellm.worker.batch import UNKNOWN, ItemSlice, NewSequence, ScheduledBatch, SequenceChunk


@dataclass(slots=True)
class StepPlan:
    """The chunks scheduled so far, and what is left of the token budget.

    Once sealed, `requests[i]` is the request of `chunks[i]`: an id could be reused while the step is in flight.
    """

    token_budget: int
    batch: ScheduledBatch = field(default_factory=ScheduledBatch)
    has_preempted: bool = False
    prefix_hashes: set[bytes] = field(default_factory=set)
    """Blocks that prefill chunks of this step compute: a waiting request that needs one of them waits a step."""
    decodes: list[tuple[SequenceChunk, Request]] = field(default_factory=list)
    prefills: list[tuple[SequenceChunk, Request]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether there is no chunk."""
        return not self.decodes and not self.prefills

    def start(self, request: Request) -> None:
        """Announce a request to the worker."""
        self.batch.new.append(
            NewSequence(
                request_id=request.request_id,
                prompt_token_ids=request.prompt_token_ids,
                output_token_ids=request.output_token_ids,
                sampling_params=request.sampling_params,
                features=request.features,
                stop_token_ids=request.stop_token_ids,
                bad_words_ids=request.bad_words_ids,
            )
        )

    def add_decode(self, request: Request, block_table: list[int]) -> None:
        """Schedule the last generated token, to sample the next."""
        chunk = SequenceChunk(
            request.request_id, request.num_computed_tokens, 1, request.output_token_ids[-1:], block_table, True
        )
        self.decodes.append((chunk, request))
        self.token_budget -= 1

    def add_decode_ahead(self, request: Request, block_table: list[int]) -> None:
        """Schedule the token that the step in flight samples: the worker will have it, the host does not know it."""
        start = request.num_computed_tokens + 1
        self.decodes.append((SequenceChunk(request.request_id, start, 1, [UNKNOWN], block_table, True), request))

    def add_prefill(
        self, request: Request, num_tokens: int, items: Sequence[ItemSlice], block_table: list[int], block_size: int
    ) -> None:
        """Schedule the next `num_tokens` known tokens of a request."""
        start = request.num_computed_tokens
        stop = start + num_tokens
        tokens = request.token_ids(start, stop)
        samples = stop == request.num_tokens
        chunk = SequenceChunk(request.request_id, start, num_tokens, tokens, block_table, samples, items)
        self.prefills.append((chunk, request))
        self.token_budget -= num_tokens
        self.prefix_hashes.update(request.block_hashes[start // block_size : -(-stop // block_size)])

    def seal(self) -> ScheduledBatch:
        """Order the chunks, decodes first."""
        entries = self.decodes + self.prefills
        self.batch.chunks = [chunk for chunk, _ in entries]
        self.requests = [request for _, request in entries]
        return self.batch
