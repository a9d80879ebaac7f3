"""How the parameters and the results of pooled requests go to and from an engine's process."""

from __future__ import annotations

import numpy as np

from corellm.engine.process.codec import RequestCodec
from corellm.engine.process.faults import to_error, to_fault
from corellm.engine.process.messages import Array, Delta
from corellm.frontend.input_processor import ProcessedPrompt
from corellm_pooling.params import PoolingParams
from corellm_pooling.results import PoolingOutput, PoolingRequestOutput

_Output = PoolingRequestOutput[PoolingOutput]


class PooledCodec(RequestCodec):
    """Results are arrays of float32; a request has one delta."""

    params_type = PoolingParams

    def in_flight(self, prompt: ProcessedPrompt, params: PoolingParams) -> PooledInFlight:
        """Return what makes the output of the delta."""
        return PooledInFlight(prompt)

    def delta(self, output: _Output) -> Delta:
        """Return an output without its prompt."""
        data = None if output.outputs is None else output.outputs.data
        return Delta(
            output.request_id,
            [],
            True,
            output.num_cached_tokens,
            output.metrics,
            fault=None if output.error is None else to_fault(output.error),
            result=None if data is None else Array(data.shape, data.tobytes()),
        )


class PooledInFlight:
    """A request in the engine's process.

    Args:
        prompt: as it was sent.
    """

    def __init__(self, prompt: ProcessedPrompt) -> None:
        self._prompt = prompt

    def output(self, delta: Delta) -> _Output:
        """Return the output that the delta makes."""
        result = delta.result
        return PoolingRequestOutput(
            delta.request_id,
            None if result is None else PoolingOutput(np.frombuffer(result.data, np.float32).reshape(result.shape)),
            self._prompt.token_ids,
            delta.num_cached_tokens,
            metrics=delta.metrics,
            error=None if delta.fault is None else to_error(delta.fault),
        )
