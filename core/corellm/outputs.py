"""The results of requests: one `RequestOutput` per request, one `CompletionOutput` per completion of it.

Plain data: this room knows no engine and no tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from corellm.errors import CorellmError, PromptTooLongError

if TYPE_CHECKING:
    from corellm.multimodal.inputs import PlaceholderRange

FinishReason = Literal["stop", "length", "abort", "ignored", "error"]


@dataclass(slots=True)
class Logprob:
    """The log-probability of one token at one position."""

    logprob: float
    rank: int | None = None
    """1 for the most likely token of the vocabulary."""
    decoded_token: str | None = None


PositionLogprobs = dict[int, Logprob]
"""Token id to its log-probability, for one position."""


@dataclass(slots=True)
class CompletionOutput:
    """One completion of a prompt."""

    index: int
    """Which of the `n` completions this is."""
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    """Sum of the sampled tokens' log-probabilities; only with `logprobs`."""
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop string or stop token id that ended it; None for end of sequence."""

    @property
    def finished(self) -> bool:
        """Whether this completion will not grow any more."""
        return self.finish_reason is not None

    def followed_by(self, later: CompletionOutput) -> CompletionOutput:
        """Join this `DELTA` output of a completion with the next one."""
        logprobs = later.logprobs if self.logprobs is None else [*self.logprobs, *(later.logprobs or ())]
        return replace(
            later, text=self.text + later.text, token_ids=self.token_ids + later.token_ids, logprobs=logprobs
        )


@dataclass(slots=True)
class RequestMetrics:
    """When things happened, in seconds of `time.monotonic()`, and how often."""

    arrival_time: float
    """When the request came; its prompt is prepared after."""
    queued_ts: float
    """When it joined the engine's queue."""
    scheduled_ts: float | None = None
    """When its first step began; this and all later times are None until then."""
    first_token_ts: float | None = None
    last_token_ts: float | None = None
    """When its newest token was generated."""
    finished_time: float | None = None
    num_generation_tokens: int = 0
    """Tokens generated so far, of all completions."""
    num_preemptions: int = 0
    replica: str | None = None
    """Which of several engines computed it, where there are several."""

    @property
    def first_token_latency(self) -> float | None:
        """Seconds from arrival to the first generated token."""
        return None if self.first_token_ts is None else self.first_token_ts - self.arrival_time

    @property
    def time_to_first_token(self) -> float | None:
        """The same as `first_token_latency`."""
        return self.first_token_latency

    @property
    def first_scheduled_time(self) -> float | None:
        """The same as `scheduled_ts`."""
        return self.scheduled_ts

    @property
    def first_token_time(self) -> float | None:
        """The same as `first_token_ts`."""
        return self.first_token_ts


@dataclass(slots=True)
class RequestOutput:
    """The state of one request: everything generated so far, or as its `output_kind` says."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    """The prompt as the model saw it, placeholders expanded."""
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    metrics: RequestMetrics | None = None
    num_cached_tokens: int = 0
    """Prompt tokens whose KV came from the prefix cache."""
    multi_modal_placeholders: dict[str, list[PlaceholderRange]] = field(default_factory=dict)
    """Where the items are in `prompt_token_ids`, by modality."""
    error: CorellmError | None = None
    """Why the request failed or was refused; its completions then end with "error" or "ignored"."""

    def followed_by(self, later: RequestOutput) -> RequestOutput:
        """Join this `DELTA` output with the next one; neither is changed."""
        outputs = [one.followed_by(other) for one, other in zip(self.outputs, later.outputs, strict=True)]
        return replace(later, outputs=outputs, prompt_logprobs=self.prompt_logprobs)


def refused_output(request_id: str, error: CorellmError, n: int) -> RequestOutput:
    """The output of a prompt that was refused before it reached the engine, with `n` empty completions."""
    reason: FinishReason = "ignored" if isinstance(error, PromptTooLongError) else "error"
    outputs = [CompletionOutput(index=i, finish_reason=reason) for i in range(n)]
    return RequestOutput(request_id, None, [], outputs, finished=True, error=error)
