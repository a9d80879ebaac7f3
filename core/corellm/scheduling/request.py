"""One sequence in the engine: its prompt and parameters, its output so far, and why it ended.

A request knows its own tokens, items and stop conditions. It knows neither blocks nor queues: the scheduler and the
block manager keep those, by request id. Only the scheduler changes a request's state.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from corellm.errors import CorellmError
from corellm.multimodal.inputs import MultiModalFeature
from corellm.outputs import FinishReason
from corellm.sampling_params import SamplingParams
from corellm.scheduling.request_part import PLAIN, RequestPart


class RequestStatus(Enum):
    """Where a request stands. Everything from `FINISHED_STOPPED` on is final."""

    WAITING = auto()
    """Not admitted yet, or preempted by recompute: holds no blocks."""
    RUNNING = auto()
    """Holds blocks; the worker knows it."""
    SWAPPED = auto()
    """Preempted by swap: its KV is in host memory, the worker has dropped its state."""
    FINISHED_STOPPED = auto()
    FINISHED_LENGTH = auto()
    FINISHED_ABORTED = auto()
    FINISHED_IGNORED = auto()
    FINISHED_ERROR = auto()

    @property
    def is_finished(self) -> bool:
        """Whether the request will not change any more."""
        return self in FINISH_REASONS


FINISH_REASONS: dict[RequestStatus, FinishReason] = {
    RequestStatus.FINISHED_STOPPED: "stop",
    RequestStatus.FINISHED_LENGTH: "length",
    RequestStatus.FINISHED_ABORTED: "abort",
    RequestStatus.FINISHED_IGNORED: "ignored",
    RequestStatus.FINISHED_ERROR: "error",
}


@dataclass(slots=True, eq=False)
class Request:
    """One sequence: a prompt, its items, and one completion.

    `output_token_ids` and `prompt_token_ids` are handed to the worker by reference, so they are only ever appended to.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    features: Sequence[MultiModalFeature] = ()
    """The prompt's items, sorted by placeholder offset when the request is made."""
    eos_token_ids: frozenset[int] = frozenset()
    priority: int = 0
    """Lower goes first, under `scheduling_policy="priority"`."""
    cache_salt: str | None = None
    """Requests share items and cached prefixes only with requests of the same salt."""
    arrival_time: float = 0.0
    """In seconds of the scheduler's clock (`time.monotonic`)."""
    bad_words_ids: Sequence[Sequence[int]] = ()
    prompt_task: Any = None
    """What is made of the prompt, where no text is: the worker knows. It ends with its last chunk, without a token."""
    needs_every_row: bool = False
    """Whether the hidden states of all tokens are needed, so that none may come from the prefix cache."""
    part: RequestPart = PLAIN
    """What a feature makes of the request; it knows what that is."""

    status: RequestStatus = field(default=RequestStatus.WAITING, init=False)
    output_token_ids: list[int] = field(default_factory=list, init=False)
    draft_token_ids: list[int] = field(default_factory=list, init=False)
    """Guesses of the tokens after these."""
    num_prompt_tokens: int = field(init=False)
    num_tokens: int = field(init=False)
    """Prompt and output tokens together; kept as a number because every step reads it."""
    num_computed_tokens: int = field(default=0, init=False)
    """Tokens whose KV is in the cache (for a swapped request: in host memory)."""
    num_cached_tokens: int = field(default=0, init=False)
    """Prompt tokens that were found in the prefix cache when the request was first admitted."""
    num_preemptions: int = field(default=0, init=False)
    first_scheduled_time: float | None = field(default=None, init=False)
    block_hashes: list[bytes] = field(default_factory=list, init=False)
    """Chained hashes of the leading full blocks, extended lazily by `corellm.scheduling.block_hash`."""
    rank: tuple[float, int] = field(default=(0, 0), init=False)
    """Order of requests: priority, then arrival. Set by the scheduler; the smallest goes first."""
    stop_token_ids: frozenset[int] = field(init=False)
    """Every token that ends the completion: end of sequence (unless ignored) and the request's own stop tokens."""
    max_output_tokens: int = field(init=False)
    error: CorellmError | None = field(default=None, init=False)
    stop_reason: int | str | None = field(default=None, init=False)
    """The stop token (set here) or stop string (set by the output processor); None for end of sequence."""

    def __post_init__(self) -> None:
        params = self.sampling_params
        self.features = sorted(self.features, key=lambda feature: feature.placeholder.offset)
        self.num_prompt_tokens = self.num_tokens = len(self.prompt_token_ids)
        self.needs_every_row |= params.prompt_logprobs is not None
        own_stops = frozenset(params.stop_token_ids or ())
        self.stop_token_ids = own_stops if params.ignore_eos else own_stops | self.eos_token_ids
        self.max_output_tokens = sys.maxsize if params.max_tokens is None else params.max_tokens

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the request ended; None while it has not."""
        return FINISH_REASONS.get(self.status)

    @property
    def is_decoding(self) -> bool:
        """Whether only the last generated token is left to compute."""
        return self.num_prompt_tokens <= self.num_computed_tokens == self.num_tokens - 1

    def token_ids(self, start: int, stop: int) -> list[int]:
        """The tokens `[start, stop)` of prompt and output together, as a new list."""
        border = self.num_prompt_tokens
        if stop <= border:
            return self.prompt_token_ids[start:stop]
        if start >= border:
            return self.output_token_ids[start - border : stop - border]
        return self.prompt_token_ids[start:] + self.output_token_ids[: stop - border]

    def limit_total_tokens(self, max_total_tokens: int) -> None:
        """Limit prompt and output together to `max_total_tokens`."""
        self.max_output_tokens = min(self.max_output_tokens, max_total_tokens - self.num_prompt_tokens)

    def restart(self, num_outputs: int) -> None:
        """Wait again, with nothing computed and only the first `num_outputs` output tokens."""
        del self.output_token_ids[num_outputs:]
        self.draft_token_ids = []
        self.num_tokens = self.num_prompt_tokens + num_outputs
        self.block_hashes.clear()
        self.forget_computed()
        self.status, self.error, self.stop_reason = RequestStatus.WAITING, None, None

    def forget_computed(self) -> None:
        """Note that nothing of it is in the cache any more."""
        self.num_computed_tokens = 0
        self.part.restart()

    def append_token(self, token_id: int) -> bool:
        """Append a sampled token; returns whether it ends the completion, then the status and `stop_reason` say why.

        A stop token counts only once `min_tokens` tokens were generated, itself included; length limits always count.
        """
        self.output_token_ids.append(token_id)
        self.num_tokens += 1
        num_outputs = len(self.output_token_ids)
        if token_id in self.stop_token_ids and num_outputs >= self.sampling_params.min_tokens:
            self.status = RequestStatus.FINISHED_STOPPED
            is_eos = token_id in self.eos_token_ids and not self.sampling_params.ignore_eos
            self.stop_reason = None if is_eos else token_id
        elif num_outputs >= self.max_output_tokens:
            self.status = RequestStatus.FINISHED_LENGTH
        else:
            return False
        return True
