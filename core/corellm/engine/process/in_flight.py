"""A request in flight in the engine's process, and what has come of it: deltas in, outputs out.

Knows what the engine is not asked to send back: the prompt, and what it sent before.
"""

from __future__ import annotations

import numpy as np

from corellm.engine.process.faults import to_error
from corellm.engine.process.messages import Delta
from corellm.frontend.input_processor import ProcessedPrompt
from corellm.multimodal.inputs import PlaceholderRange
from corellm.outputs import RequestOutput
from corellm.pooling_outputs import PoolingOutput, PoolingRequestOutput


class InFlightRequest:
    """One request.

    Args:
        prompt: as it was sent.
        joins: whether outputs hold everything so far.
    """

    def __init__(self, prompt: ProcessedPrompt, *, joins: bool) -> None:
        self._prompt, self._joins = prompt, joins
        self._placeholders: dict[str, list[PlaceholderRange]] = {}
        for feature in prompt.features:
            self._placeholders.setdefault(feature.modality, []).append(feature.placeholder)
        self._newest: RequestOutput | None = None

    def output(self, delta: Delta) -> RequestOutput:
        """The output that a delta makes."""
        output = RequestOutput(
            delta.request_id,
            self._prompt.text,
            self._prompt.token_ids,
            delta.outputs,
            delta.finished,
            delta.prompt_logprobs,
            delta.metrics,
            delta.num_cached_tokens,
            self._placeholders,
            None if delta.fault is None else to_error(delta.fault),
        )
        if self._joins:
            self._newest = output = output if self._newest is None else self._newest.followed_by(output)
        return output


class PooledInFlight:
    """One request of a model that pools: its only delta is its output.

    Args:
        prompt: as it was sent.
    """

    def __init__(self, prompt: ProcessedPrompt) -> None:
        self._prompt = prompt

    def output(self, delta: Delta) -> PoolingRequestOutput[PoolingOutput]:
        """The output that the delta makes."""
        pooled = delta.pooled
        return PoolingRequestOutput(
            delta.request_id,
            None if pooled is None else PoolingOutput(np.frombuffer(pooled.data, np.float32).reshape(pooled.shape)),
            self._prompt.token_ids,
            delta.num_cached_tokens,
            metrics=delta.metrics,
            error=None if delta.fault is None else to_error(delta.fault),
        )
