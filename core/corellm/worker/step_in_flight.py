"""A step in flight: launched on the device, its tokens not on the host yet.

Knows its batch, tokens and result; knows nothing of how they are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from corellm.sampling.sampler import SamplerOutput, TokensInFlight
from corellm.scheduling.batch import ScheduledBatch, SequenceChunk, StepResult, TokenLogprobs
from corellm.worker.parts.proposals import Proposals
from corellm.worker.sequence_state import SequenceState


class StepInFlight:
    """A step that was launched.

    Args:
        batch: what it runs.
        states: of the worker's sequences; failed ones are removed.
        proposals: makes drafts of what comes after sampled tokens; None for none.

    Attributes:
        result: so far.
        chunks: the chunks that get tokens.
        tokens: their tokens in this order, one and one for each draft; None once they are in the result.
        logits: of a step launched ahead whose tokens cannot be chosen yet; otherwise None.
        in_flight: whether it is a graph that still runs: only then can `launch_ahead` follow it.
    """

    def __init__(
        self, batch: ScheduledBatch, states: dict[str, SequenceState], proposals: Proposals | None = None
    ) -> None:
        self.batch, self._states, self._proposals = batch, states, proposals
        self.result = StepResult()
        self.chunks: Sequence[SequenceChunk] = ()
        self.settle: Callable[[StepInFlight], None] | None = None
        """Called once the device is done, to find which requests failed meanwhile; None where none can have."""
        self.tokens: TokensInFlight | None = None
        self.logits: Tensor | None = None
        self.in_flight = False

    def wait(self) -> StepResult:
        """Wait for the device and return the step's result."""
        result, tokens, self.tokens, self.in_flight = self.result, self.tokens, None, False
        output = None if tokens is None else tokens.wait()
        if self.settle is not None:
            self.settle(self)
        if output is not None:
            end = 0
            for chunk in self.chunks:
                start, end = end, end + 1 + chunk.num_drafts
                if chunk.request_id not in result.failed:  # an item's encoder did, or a part could not run it
                    self._take(chunk, output, start)
            if self._proposals is not None and self._proposals.is_on:
                names = [chunk.request_id for chunk in self.chunks if chunk.request_id in result.sampled]
                result.drafts.update(self._proposals({name: tuple(result.sampled[name]) for name in names}))
        for request_id in result.failed:
            self._states.pop(request_id, None)
        return result

    def _take(self, chunk: SequenceChunk, output: SamplerOutput, first: int) -> None:
        """Take a chunk's tokens from row `first` on: the drafts that are what was sampled, and the token after them."""
        if not chunk.num_drafts and first not in output.failed:  # most
            self.result.sampled[chunk.request_id] = [output.token_ids[first]]
            if (only := output.logprobs[first]) is not None:
                self.result.logprobs[chunk.request_id] = [only]
            return
        sampled: list[int] = []
        logprobs: list[TokenLogprobs] = []
        for row, draft in enumerate([*chunk.drafts, None], start=first):
            if row in output.failed and sampled:
                break  # a draft after it ends the output, or the next step fails
            if row in output.failed:
                self.result.failed[chunk.request_id] = output.failed[row]
                return
            sampled.append(output.token_ids[row])
            if (found := output.logprobs[row]) is not None:
                logprobs.append(found)
            if sampled[-1] != draft:
                break
        self.result.sampled[chunk.request_id] = sampled
        if logprobs:
            self.result.logprobs[chunk.request_id] = logprobs
