"""Turns sampled tokens into outputs: text, stop strings, log-probabilities, one output per request.

A caller's request with `n > 1` runs as `n` engine requests; this file joins them again. Knows tokenizers and text;
knows no scheduler: it returns the requests that ended here, and the engine finishes them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate
from typing import Any

from corellm.errors import CorellmError, RequestFailedError
from corellm.frontend.detokenizer import IncrementalDetokenizer
from corellm.frontend.logprobs_decoder import LogprobsDecoder
from corellm.frontend.output_group import GrowingCompletion, OutputGroup
from corellm.frontend.stop_strings import StopStringMatcher
from corellm.outputs import CompletionOutput, FinishReason, RequestMetrics, RequestOutput, refused_output
from corellm.sampling_params import RequestOutputKind, SamplingParams
from corellm.scheduling.batch import ScheduledBatch, StepResult, TokenLogprobs
from corellm.scheduling.request import Request, RequestStatus
from corellm.system.failures import failure_of


class OutputProcessor:
    """Turns step results into `RequestOutput`s."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._groups: dict[str, OutputGroup] = {}
        self._completions: dict[str, GrowingCompletion] = {}
        self._changed: dict[str, OutputGroup] = {}
        self._logprobs_decoder = LogprobsDecoder(tokenizer)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._groups

    def __len__(self) -> int:
        """Number of callers' requests whose final output has not been returned."""
        return len(self._groups)

    @property
    def has_outputs(self) -> bool:
        """Whether outputs are due that no step made, as those of aborted requests."""
        return bool(self._changed)

    def add(
        self, request_id: str, prompt: str | None, requests: list[Request], *, kind: RequestOutputKind, queued_ts: float
    ) -> None:
        """Add a caller's request, run as one engine request per completion; some may be refused already."""
        metrics = RequestMetrics(requests[0].arrival_time, queued_ts)
        group = OutputGroup(request_id, prompt, kind, requests, metrics)
        for index, request in enumerate(requests):
            params = request.sampling_params
            output = CompletionOutput(
                index=index,
                logprobs=None if params.logprobs is None else [],
                cumulative_logprob=None if params.logprobs is None else 0.0,
            )
            completion = GrowingCompletion(group, request, output)
            is_last = kind is RequestOutputKind.FINAL_ONLY and params.logprobs is None and not params.stop
            completion.text_comes_last = is_last and params.detokenize
            if not completion.text_comes_last:
                completion.detokenizer, completion.stop = self._text_state(request)
            group.completions.append(completion)
            self._completions[request.request_id] = completion
        if refused := [request for request in requests if request.status.is_finished]:
            self.finish_outside_step(refused)
        self._groups[request_id] = group  # last: an interrupt before this line undoes all of it

    def _text_state(self, request: Request) -> tuple[IncrementalDetokenizer | None, StopStringMatcher | None]:
        """A new detokenizer and stop string matcher for a request; None where it needs none."""
        params, stop = request.sampling_params, None
        if not params.detokenize:
            return None, None
        detokenizer = self._detokenizer(request)
        if params.stop:
            stop = StopStringMatcher(
                params.stop, include=params.include_stop_str_in_output, left_out=detokenizer.left_out_texts
            )
        return detokenizer, stop

    def _detokenizer(self, request: Request) -> IncrementalDetokenizer:
        params = request.sampling_params
        return IncrementalDetokenizer(
            self._tokenizer,
            request.prompt_token_ids,
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
        )

    def refused(self, request_id: str, error: CorellmError, params: SamplingParams) -> RequestOutput:
        """The output of a prompt that was refused before it reached the engine."""
        return refused_output(request_id, error, params.n)

    def engine_request_ids(self, request_id: str) -> list[str]:
        """The engine requests of a caller's request; none if it is not running."""
        group = self._groups.get(request_id)
        return [] if group is None else [request.request_id for request in group.requests]

    def discard(self, request_id: str) -> None:
        """Forget a caller's request: it has no more outputs."""
        group = self._groups.pop(request_id, None)
        self._changed.pop(request_id, None)
        if group is not None:
            for request in group.requests:
                self._completions.pop(request.request_id, None)
            group.release()

    # --- after a step -----------------------------------------------------------------------------------------------

    def process(self, changed: Iterable[Request], batch: ScheduledBatch, result: StepResult) -> list[str]:
        """Take in a step's results; `take_outputs` returns the outputs.

        Args:
            changed: requests that got a token or finished.
            batch, result: of the step; sampled tokens after a stop string are dropped from the result.

        Returns:
            The engine requests that ended here: by a stop string, or because their text could not be made.
        """
        now = time.monotonic()
        stopped = self._take_prompt_logprobs(batch, result, now)
        for request in changed:
            completion = self._completions.get(request.request_id)
            if completion is None:
                continue
            tokens = result.sampled.get(request.request_id, [])
            logprobs = result.logprobs.get(request.request_id)
            try:
                for index, token in enumerate(tokens):
                    self._take_token(completion, token, logprobs[index] if logprobs else None, now)
                    if completion.output.stop_reason is not None:
                        del tokens[index + 1 :]
                        break
                if request.status.is_finished:
                    self._finish(completion, now)
                elif completion.output.stop_reason is not None:  # a stop string
                    stopped.append(request.request_id)
                    self._finish(completion, now)
                else:
                    completion.num_committed = len(completion.output.token_ids)
            except Exception as error:  # one request's text must not end the engine
                stopped.append(request.request_id)
                self._fail(completion, error, now)
            self._changed[completion.group.request_id] = completion.group
        return stopped

    def take_outputs(self) -> list[RequestOutput]:
        """Return the outputs that are due, as the requests' `RequestOutputKind`s say."""
        due = [group for group in self._changed.values() if group.is_due]
        outputs = [group.take() for group in due]
        self._changed.clear()
        for group in due:
            if group.finished:
                self._groups.pop(group.request_id, None)
                group.release()
        return outputs

    def _take_token(
        self, completion: GrowingCompletion, token: int, logprobs: TokenLogprobs | None, now: float
    ) -> None:
        output, request = completion.output, completion.request
        params = request.sampling_params
        metrics = completion.group.metrics
        metrics.first_token_ts = metrics.first_token_ts or now
        metrics.last_token_ts = now
        metrics.num_generation_tokens += 1
        output.token_ids.append(token)
        if logprobs is not None and output.logprobs is not None:
            output.logprobs.append(self._logprobs_decoder.decode_position(logprobs, completion.detokenizer))
            output.cumulative_logprob = (output.cumulative_logprob or 0.0) + logprobs.logprobs[0]
        if completion.detokenizer is None or _ends_without_text(completion):
            return
        output.text += _text_of(token, len(output.token_ids), params, completion.detokenizer, completion.stop)
        if completion.stop is not None:
            output.stop_reason = completion.stop.matched

    def _finish(self, completion: GrowingCompletion, now: float) -> None:
        """End a completion. Setting its finish reason ends it; the lines after that only add to it."""
        output, request, tail = completion.output, completion.request, ""
        if completion.text_comes_last:
            detokenizer = self._detokenizer(request)
            tokens = output.token_ids[:-1] if _ends_without_text(completion) else output.token_ids
            output.text = detokenizer.extend(tokens) + detokenizer.finish()
        elif completion.detokenizer is not None and output.stop_reason is None:
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
        group.metrics.finished_time = now
        output.finish_reason = finish_reason
        if tail and output.logprobs and completion.detokenizer is not None:
            _extend_last_text(output, completion.detokenizer, tail)
        group.metrics.num_preemptions += request.num_preemptions
        self._completions.pop(request.request_id, None)
        self._changed[group.request_id] = group

    def _fail(self, completion: GrowingCompletion, error: Exception, now: float) -> None:
        """End a completion whose text could not be made."""
        completion.detokenizer, completion.stop, completion.text_comes_last = None, None, False
        completion.request.error = failure_of("making text of tokens", error, RequestFailedError)
        self._finish(completion, now)
        completion.output.finish_reason = "error"

    def finish_outside_step(self, requests: Iterable[Request]) -> None:
        """Close requests that ended without a step: refused at admission, or aborted."""
        now = time.monotonic()
        for request in requests:
            completion = self._completions.get(request.request_id)
            if completion is not None:
                try:
                    self._finish(completion, now)
                except Exception as error:
                    self._fail(completion, error, now)

    # --- after an interrupt -----------------------------------------------------------------------------------------

    def rewind(self) -> list[Request]:
        """Reset unfinished requests to the state after the last step that was not interrupted.

        Works from any state that an interrupted call left; may itself be interrupted and called again.

        Returns:
            The unfinished requests, each with its tokens so far and none of them computed.
        """
        self._changed = {name: group for name, group in self._groups.items() if group.finished}
        going_on = [c for group in self._groups.values() for c in group.completions if not c.output.finished]
        self._completions = {completion.request.request_id: completion for completion in going_on}
        for completion in going_on:
            self._rewind(completion)
        return [completion.request for completion in going_on]

    def _rewind(self, completion: GrowingCompletion) -> None:
        output, request, count = completion.output, completion.request, completion.num_committed
        del output.token_ids[count:]
        if output.logprobs is not None:
            del output.logprobs[count:]
            chosen = zip(output.token_ids, output.logprobs, strict=True)
            # one by one, as `_take_token` adds them: from Python 3.12 on `sum` rounds otherwise
            *_, output.cumulative_logprob = accumulate((at[token].logprob for token, at in chosen), initial=0.0)
        detokenizer, stop = (None, None) if completion.text_comes_last else self._text_state(request)
        output.text = ""
        if detokenizer is not None:
            tokens = enumerate(output.token_ids, start=1)
            output.text = "".join(
                _text_of(token, number, request.sampling_params, detokenizer, stop) for number, token in tokens
            )
        completion.detokenizer, completion.stop, output.stop_reason = detokenizer, stop, None
        group = completion.group
        group.metrics.num_generation_tokens = sum(len(c.output.token_ids) for c in group.completions)
        group.error = next((c.request.error for c in group.completions if c.output.finished and c.request.error), None)
        request.restart(count)

    # --- log-probabilities --------------------------------------------------------------------------------------------

    def _take_prompt_logprobs(self, batch: ScheduledBatch, result: StepResult, now: float) -> list[str]:
        """Take in log-probabilities of prompts; returns the engine requests that failed."""
        failed: list[str] = []
        if not result.prompt_logprobs:
            return failed
        for chunk in batch.chunks:
            completion = self._completions.get(chunk.request_id)
            positions = result.prompt_logprobs.get(chunk.request_id)
            if positions is None or completion is None or completion.output.index:
                continue  # every completion has the same prompt: the first one's are enough
            group = completion.group
            known = (group.prompt_logprobs or [None])[: chunk.start + 1]  # the rest is computed again
            try:
                group.prompt_logprobs = known + self._logprobs_decoder.decode_prompt(
                    positions,
                    group.prompt_token_ids[: chunk.start + 1],
                    detokenize=completion.request.sampling_params.detokenize,
                )
            except Exception as error:
                failed.append(chunk.request_id)
                self._fail(completion, error, now)
        return failed


def _ends_without_text(completion: GrowingCompletion) -> bool:
    """Whether a completion's last token is one that ended it and is left out of its text."""
    output, request = completion.output, completion.request
    return (
        request.status is RequestStatus.FINISHED_STOPPED
        and len(output.token_ids) == len(request.output_token_ids)
        and not request.sampling_params.include_stop_str_in_output
    )


def _text_of(
    token: int,
    number: int,
    params: SamplingParams,
    detokenizer: IncrementalDetokenizer,
    stop: StopStringMatcher | None,
) -> str:
    """The text that a completion's token adds; `number` is counted from 1."""
    text = detokenizer.append(token)
    if stop is None:
        return text
    if number < params.min_tokens:
        return stop.skip(text)
    left_out = detokenizer.left_out_text(token)
    return stop.append(text or left_out, left_out=bool(left_out))


def _extend_last_text(output: CompletionOutput, detokenizer: IncrementalDetokenizer, tail: str) -> None:
    """Add the text that was held back for an incomplete character to the last token with text.

    Replaces the entry in the list and does not change it: outputs may share it.
    """
    assert output.logprobs is not None
    for i in reversed(range(len(output.token_ids))):
        token = output.token_ids[i]
        if not detokenizer.left_out_text(token):
            last = output.logprobs[i][token]
            extended = replace(last, decoded_token=(last.decoded_token or "") + tail)
            output.logprobs[i] = {**output.logprobs[i], token: extended}
            return
