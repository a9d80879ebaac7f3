"""What a caller gets back: one `RequestOutput` per request, one `CompletionOutput` per completion of it.

Plain data: this room knows no engine and no tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from corellm.errors import CorellmError

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


@dataclass(slots=True)
class RequestMetrics:
    """When things happened, in seconds of `time.monotonic()`, and how often."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first generated token."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time


@dataclass(slots=True)
class RequestOutput:
    """The state of one request: everything generated so far."""

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
    error: CorellmError | None = None
    """Why the request failed or was refused; its completions then end with "error" or "ignored"."""
