"""A caller's request and its completions while they grow, and the outputs that are copies of them.

Knows which outputs are due; knows neither tokenizers nor steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from corellm.errors import CorellmError
from corellm.frontend.detokenizer import IncrementalDetokenizer
from corellm.frontend.stop_strings import StopStringMatcher
from corellm.multimodal.inputs import PlaceholderRange
from corellm.outputs import CompletionOutput, PositionLogprobs, RequestMetrics, RequestOutput
from corellm.sampling_params import RequestOutputKind
from corellm.scheduling.request import Request


@dataclass
class OutputGroup:
    """A caller's request with its completions; each completion is an engine request."""

    request_id: str
    prompt: str | None
    kind: RequestOutputKind
    requests: list[Request]
    metrics: RequestMetrics
    prompt_token_ids: list[int] = field(init=False)
    """A copy that outputs share: callers must not get the engine's own list."""
    placeholders: dict[str, list[PlaceholderRange]] = field(init=False)
    completions: list[GrowingCompletion] = field(default_factory=list)
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    error: CorellmError | None = None
    _has_output: bool = False

    def __post_init__(self) -> None:
        first = self.requests[0]
        self.prompt_token_ids = list(first.part.stated_tokens(first))
        self.placeholders = {}
        for feature in first.features:
            self.placeholders.setdefault(feature.modality, []).append(feature.placeholder)
        if first.sampling_params.prompt_logprobs is not None:
            self.prompt_logprobs = [None]  # nothing comes before the first token

    @property
    def finished(self) -> bool:
        """Whether all completions are."""
        return all(completion.output.finished for completion in self.completions)

    @property
    def is_due(self) -> bool:
        """Whether a change makes an output."""
        return self.kind is not RequestOutputKind.FINAL_ONLY or self.finished

    def release(self) -> None:
        """Forget the completions, which refer to the group: its items are freed now, not by the garbage collector."""
        self.completions.clear()

    def take(self) -> RequestOutput:
        """Return the output as of now: a copy."""
        metrics = self.metrics
        metrics.scheduled_ts = self.requests[0].first_scheduled_time
        is_delta = self.kind is RequestOutputKind.DELTA
        is_later_delta = is_delta and self._has_output
        self._has_output = True
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[completion.take(is_delta=is_delta) for completion in self.completions],
            finished=self.finished,
            prompt_logprobs=None if is_later_delta else self.prompt_logprobs,
            metrics=RequestMetrics(  # not dataclasses.replace, which takes thrice as long for every token
                metrics.arrival_time,
                metrics.queued_ts,
                metrics.scheduled_ts,
                metrics.first_token_ts,
                metrics.last_token_ts,
                metrics.finished_time,
                metrics.num_generation_tokens,
                metrics.num_preemptions,
            ),
            num_cached_tokens=self.requests[0].num_cached_tokens,
            multi_modal_placeholders=self.placeholders,
            error=self.error,
        )


@dataclass
class GrowingCompletion:
    """One of a request's completions."""

    group: OutputGroup
    request: Request
    output: CompletionOutput
    detokenizer: IncrementalDetokenizer | None = None
    """Makes its text, token by token; None where there is none, or all of it is made at the end."""
    stop: StopStringMatcher | None = None
    text_comes_last: bool = False
    """Whether the caller gets its text at the end alone: all its tokens are decoded then, at once."""
    num_committed: int = 0
    """Output tokens of steps that ended without an interrupt: an interrupted step is undone back to here."""
    _output_characters: int = 0
    """Characters of the text that were output as deltas."""
    _output_tokens: int = 0

    def take(self, *, is_delta: bool) -> CompletionOutput:
        """Return a copy of everything, or of what is new since the last delta."""
        out, text, tokens = self.output, self._output_characters, self._output_tokens
        if is_delta:
            self._output_characters, self._output_tokens = len(out.text), len(out.token_ids)
        return CompletionOutput(
            index=out.index,
            text=out.text[text:],
            token_ids=out.token_ids[tokens:],
            cumulative_logprob=out.cumulative_logprob,
            logprobs=None if out.logprobs is None else out.logprobs[tokens:],
            finish_reason=out.finish_reason,
            stop_reason=out.stop_reason,
        )
