"""Turns requests' parameters and outputs into messages between the two processes, and back.

Here for text generation; another use of a model brings its own codec (`ModelUse.codec`).
Knows what the engine's process is not asked to send back: the prompt, and what it sent before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, Protocol

from corellm.engine.metrics import Counter, Gauge, Metric, Vector, read_metrics
from corellm.engine.process.faults import to_error, to_fault
from corellm.engine.process.messages import Delta
from corellm.errors import ContractError, InvalidParameterError
from corellm.frontend.input_processor import ProcessedPrompt
from corellm.multimodal.inputs import PlaceholderRange
from corellm.outputs import RequestOutput
from corellm.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from corellm.engine.llm_engine import LLMEngine

_METRICS: dict[str, type[Metric]] = {kind.__name__: kind for kind in (Counter, Gauge, Vector)}


class InFlightRequest(Protocol):
    """A request in the engine's process, seen from the API process."""

    def output(self, delta: Delta) -> Any:
        """Return the output that a delta makes."""


class RequestCodec:
    """Codec of text generation, and base of others: the engine sends deltas, and the API process joins them."""

    params_type: type = SamplingParams
    """Type of a request's parameters: a dataclass, which msgspec encodes and decodes."""

    def in_flight(self, prompt: ProcessedPrompt, params: Any) -> InFlightRequest:
        """Return what makes outputs of deltas; sets the parameters to ask for deltas.

        Args:
            prompt: as it is sent.
            params: the request's own.

        Raises:
            ContractError: the parameters are of a use that has no codec.
        """
        if not isinstance(params, SamplingParams):
            raise ContractError(
                f"{type(params).__name__} cannot go to an engine in another process: the model's use has parameters of "
                "its own, and needs a codec (ModelUse.codec)"
            )
        for one in params.logits_processors or ():
            if one.function is not None:
                raise InvalidParameterError(
                    f"logits_processors: {one.function!r:.100} cannot go to an engine in another process; register it "
                    "by a name (register_logits_processors), or use LLM or AsyncLLM",
                    param="logits_processors",
                )
        joins = params.output_kind is RequestOutputKind.CUMULATIVE
        if joins:
            params.output_kind = RequestOutputKind.DELTA
        return _Completions(prompt, joins=joins)

    def delta(self, output: Any) -> Delta:
        """Return what is new in an output of the engine."""
        return Delta(
            output.request_id,
            output.outputs,
            output.finished,
            output.num_cached_tokens,
            output.metrics if output.finished else None,
            output.prompt_logprobs,
            None if output.error is None else to_fault(output.error),
        )


class _Completions:
    """A request for text.

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
        """Return the output that a delta makes."""
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


def plain_metrics(engine: LLMEngine) -> list[Sequence[Any]]:
    """Return an engine's metrics as plain data."""
    return [(type(metric).__name__, *astuple(metric)) for metric in read_metrics(engine)]


def metrics_of(plain: Sequence[Sequence[Any]]) -> list[Metric]:
    """Return what `plain_metrics` made plain."""
    return [_METRICS[kind](*fields) for kind, *fields in plain]
