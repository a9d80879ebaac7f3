"""From sampled tokens to what callers get: text, stop strings, log-probabilities, one output per request.

A caller's request with `n > 1` runs as `n` engine requests; this file joins them again. Knows tokenizers and text;
knows no scheduler: it says which requests a stop string ended, the engine loop acts on it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from corellm.engine.detokenizer import IncrementalDetokenizer
from corellm.engine.request import Request, RequestStatus
from corellm.engine.stop_strings import StopStringMatcher
from corellm.errors import CorellmError
from corellm.outputs import CompletionOutput, FinishReason, Logprob, PositionLogprobs, RequestMetrics, RequestOutput
from corellm.sampling_params import SamplingParams
from corellm.worker.batch import ScheduledBatch, StepResult, TokenLogprobs


@dataclass
class _Group:
    """A caller's request and its completions."""

    request_id: str
    prompt: str | None
    stream: bool
    requests: list[Request]
    prompt_token_ids: list[int]
    """A copy that outputs share: the engine's own list must not be within callers' reach."""
    metrics: RequestMetrics
    completions: list[_Completion] = field(default_factory=list)
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    error: CorellmError | None = None

    @property
    def finished(self) -> bool:
        return all(completion.output.finished for completion in self.completions)


@dataclass
class _Completion:
    """One of a request's completions while it grows."""

    group: _Group
    request: Request
    output: CompletionOutput
    detokenizer: IncrementalDetokenizer | None
    stop: StopStringMatcher | None
    num_taken: int = 0
    """Tokens that were taken in whole, without ending it: what is beyond belongs to a step that was interrupted."""


class OutputProcessor:
    """Turns step results into `RequestOutput`s."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._groups: dict[str, _Group] = {}
        self._completions: dict[str, _Completion] = {}
        self._pending: dict[str, _Group] = {}
        self._decode = lru_cache(maxsize=65536)(lambda token: tokenizer.decode([token]))

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._groups

    def __len__(self) -> int:
        """How many callers' requests have not been handed out to their end."""
        return len(self._groups)

    def add(self, request_id: str, prompt: str | None, requests: list[Request], *, stream: bool) -> None:
        """Take over a caller's request, run as one engine request per completion; some may be refused already."""
        metrics = RequestMetrics(arrival_time=requests[0].arrival_time)
        group = _Group(request_id, prompt, stream, requests, list(requests[0].prompt_token_ids), metrics)
        for index, request in enumerate(requests):
            params = request.sampling_params
            completion = _Completion(
                group,
                request,
                CompletionOutput(
                    index=index,
                    logprobs=None if params.logprobs is None else [],
                    cumulative_logprob=None if params.logprobs is None else 0.0,
                ),
                *self._text_state(request),
            )
            group.completions.append(completion)
            self._completions[request.request_id] = completion
        self.finish_outside_step(request for request in requests if request.status.is_finished)
        self._groups[request_id] = group  # from here on it counts

    def _text_state(self, request: Request) -> tuple[IncrementalDetokenizer | None, StopStringMatcher | None]:
        """What turns a request's tokens into text, at its beginning."""
        params, detokenizer = request.sampling_params, None
        if params.detokenize:
            detokenizer = IncrementalDetokenizer(
                self._tokenizer, request.prompt_token_ids, skip_special_tokens=params.skip_special_tokens
            )
        stop = StopStringMatcher(params.stop, include=params.include_stop_str_in_output) if params.stop else None
        return detokenizer, stop

    def engine_request_ids(self, request_id: str) -> list[str]:
        """The engine requests of a caller's request; none if it is not running."""
        group = self._groups.get(request_id)
        return [] if group is None else [request.request_id for request in group.requests]

    def discard(self, request_id: str) -> None:
        """Forget a caller's request: nothing of it is handed out any more."""
        group = self._groups.pop(request_id, None)
        self._pending.pop(request_id, None)
        for request in group.requests if group is not None else ():
            self._completions.pop(request.request_id, None)

    # --- after a step -----------------------------------------------------------------------------------------------

    def process(self, changed: Iterable[Request], batch: ScheduledBatch, result: StepResult) -> list[str]:
        """Take in a step's results; `take_pending` hands out what came of them.

        Args:
            changed: requests that got a token or finished.
            batch, result: of the step.

        Returns:
            The engine requests that a stop string ended.
        """
        now = time.monotonic()
        self._take_prompt_logprobs(batch, result)
        stopped: list[str] = []
        for request in changed:
            completion = self._completions.get(request.request_id)
            if completion is None:
                continue
            token = result.sampled.get(request.request_id)
            if token is not None:
                self._take_token(completion, token, result.logprobs.get(request.request_id), now)
            if request.status.is_finished:
                self._finish(completion, now)
            elif completion.output.stop_reason is not None:  # a stop string
                stopped.append(request.request_id)
                self._finish(completion, now)
            else:
                completion.num_taken = len(completion.output.token_ids)
            self._pending[completion.group.request_id] = completion.group
        return stopped

    def take_pending(self) -> list[RequestOutput]:
        """Hand out what is due: streaming requests whenever they got something, others at their end."""
        due = [group for group in self._pending.values() if group.stream or group.finished]
        outputs = [_snapshot(group) for group in due]
        self._pending.clear()
        for group in due:
            if group.finished:
                self._groups.pop(group.request_id, None)
        return outputs

    def _take_token(self, completion: _Completion, token: int, logprobs: TokenLogprobs | None, now: float) -> None:
        output, request = completion.output, completion.request
        params = request.sampling_params
        completion.group.metrics.first_token_time = completion.group.metrics.first_token_time or now
        output.token_ids.append(token)
        if logprobs is not None and output.logprobs is not None:
            output.logprobs.append(self._position(logprobs))
            output.cumulative_logprob = (output.cumulative_logprob or 0.0) + logprobs.logprobs[0]
        ended_by_token = request.status is RequestStatus.FINISHED_STOPPED
        if completion.detokenizer is None or (ended_by_token and not params.include_stop_str_in_output):
            return
        output.text += _text_of(token, len(output.token_ids), params, completion.detokenizer, completion.stop)
        if completion.stop is not None:
            output.stop_reason = completion.stop.matched

    def _finish(self, completion: _Completion, now: float) -> None:
        """End a completion. It counts as ended with its finish reason, so that is the last to be set."""
        output, request = completion.output, completion.request
        if completion.detokenizer is not None and output.stop_reason is None:
            tail = completion.detokenizer.finish()
            if completion.stop is None:
                output.text += tail
            else:
                output.text += completion.stop.append(tail) + completion.stop.flush()
                output.stop_reason = completion.stop.matched
        finish_reason: FinishReason | None = "stop" if output.stop_reason is not None else request.finish_reason
        if output.stop_reason is None:
            output.stop_reason = request.stop_reason
        group = completion.group
        group.error = group.error or request.error
        group.metrics.finished_time = now  # of its last completion, in the end
        output.finish_reason = finish_reason
        group.metrics.num_preemptions += request.num_preemptions
        self._completions.pop(request.request_id, None)
        self._pending[group.request_id] = group

    def finish_outside_step(self, requests: Iterable[Request]) -> None:
        """Close requests that ended without a step: refused at admission, or aborted."""
        now = time.monotonic()
        for request in requests:
            completion = self._completions.get(request.request_id)
            if completion is not None:
                self._finish(completion, now)

    # --- after an interrupt -----------------------------------------------------------------------------------------

    def rewind(self) -> list[Request]:
        """Take back what an interrupted call began: whatever is not finished is as its last whole step left it.

        Right whatever that call left behind, and may itself be interrupted and called again.

        Returns:
            The requests that are not finished, each with the tokens that were taken in and none of them computed.
        """
        self._pending = {name: group for name, group in self._groups.items() if group.finished}
        going_on = [c for group in self._groups.values() for c in group.completions if not c.output.finished]
        self._completions = {completion.request.request_id: completion for completion in going_on}
        for completion in going_on:
            self._rewind(completion)
        return [completion.request for completion in going_on]

    def _rewind(self, completion: _Completion) -> None:
        output, request, count = completion.output, completion.request, completion.num_taken
        del output.token_ids[count:]
        if output.logprobs is not None:
            del output.logprobs[count:]
            chosen = zip(output.token_ids, output.logprobs, strict=True)
            output.cumulative_logprob = sum((position[token].logprob for token, position in chosen), 0.0)
        detokenizer, stop = self._text_state(request)
        if detokenizer is not None:
            tokens = enumerate(output.token_ids, start=1)
            output.text = "".join(
                _text_of(token, number, request.sampling_params, detokenizer, stop) for number, token in tokens
            )
        completion.detokenizer, completion.stop, output.stop_reason = detokenizer, stop, None
        group = completion.group
        group.error = next((c.request.error for c in group.completions if c.output.finished and c.request.error), None)
        request.restart(count)

    # --- log-probabilities --------------------------------------------------------------------------------------------

    def _position(self, logprobs: TokenLogprobs) -> PositionLogprobs:
        return {
            token: Logprob(logprob, rank, self._decode(token))
            for token, logprob, rank in zip(logprobs.token_ids, logprobs.logprobs, logprobs.ranks, strict=True)
        }

    def _take_prompt_logprobs(self, batch: ScheduledBatch, result: StepResult) -> None:
        if not result.prompt_logprobs:
            return
        for chunk in batch.chunks:
            completion = self._completions.get(chunk.request_id)
            positions = result.prompt_logprobs.get(chunk.request_id)
            if positions is None or completion is None or completion.output.index:
                continue  # every completion has the same prompt: the first one's are enough
            known = (completion.group.prompt_logprobs or [None])[: chunk.start + 1]  # the rest is computed again
            completion.group.prompt_logprobs = [*known, *(self._position(p) for p in positions)]


def _text_of(
    token: int,
    number: int,
    params: SamplingParams,
    detokenizer: IncrementalDetokenizer,
    stop: StopStringMatcher | None,
) -> str:
    """What a completion's token, `number` counted from 1, adds to its text."""
    text = detokenizer.append(token)
    if stop is None:
        return text
    return stop.skip(text) if number < params.min_tokens else stop.append(text)


def _snapshot(group: _Group) -> RequestOutput:
    """A copy: what was handed out does not change any more."""
    first, metrics = group.requests[0], group.metrics
    metrics.first_scheduled_time = first.first_scheduled_time
    return RequestOutput(
        request_id=group.request_id,
        prompt=group.prompt,
        prompt_token_ids=group.prompt_token_ids,
        outputs=[
            CompletionOutput(
                index=out.index,
                text=out.text,
                token_ids=list(out.token_ids),
                cumulative_logprob=out.cumulative_logprob,
                logprobs=None if out.logprobs is None else list(out.logprobs),
                finish_reason=out.finish_reason,
                stop_reason=out.stop_reason,
            )
            for out in (completion.output for completion in group.completions)
        ],
        finished=group.finished,
        prompt_logprobs=group.prompt_logprobs,
        metrics=RequestMetrics(  # not dataclasses.replace, which takes thrice as long for every token
            metrics.arrival_time,
            metrics.first_scheduled_time,
            metrics.first_token_time,
            metrics.finished_time,
            metrics.num_preemptions,
        ),
        num_cached_tokens=first.num_cached_tokens,
        error=group.error,
    )
