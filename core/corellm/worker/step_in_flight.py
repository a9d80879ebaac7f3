"""A step in flight: launched on the device, its tokens not on the host yet.

Knows its batch, tokens and result; knows nothing of how they are computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from corellm.sampling.sampler import TokensInFlight
from corellm.scheduling.batch import ScheduledBatch, SequenceChunk, StepResult
from corellm.worker.sequence_state import SequenceState


class StepInFlight:
    """A step that was launched.

    Args:
        batch: what it runs.
        states: of the worker's sequences; failed ones are removed.

    Attributes:
        result: so far.
        chunks: the chunks that get a token.
        tokens: their tokens, in this order; None once they are in the result.
        in_flight: whether it is a graph that still runs: only then can `launch_ahead` follow it.
    """

    def __init__(self, batch: ScheduledBatch, states: dict[str, SequenceState]) -> None:
        self.batch, self._states = batch, states
        self.result = StepResult()
        self.chunks: Sequence[SequenceChunk] = ()
        self.tokens: TokensInFlight | None = None
        self.in_flight = False

    def wait(self) -> StepResult:
        """Wait for the device and return the step's result."""
        result, tokens, self.tokens, self.in_flight = self.result, self.tokens, None, False
        if tokens is not None:
            output = tokens.wait()
            for row, chunk in enumerate(self.chunks):
                if row in output.failed:
                    result.failed[chunk.request_id] = output.failed[row]
                    continue
                result.sampled[chunk.request_id] = [output.token_ids[row]]
                logprobs = output.logprobs[row]
                if logprobs is not None:
                    result.logprobs[chunk.request_id] = [logprobs]
        for request_id in result.failed:
            self._states.pop(request_id, None)
        return result
