"""Sampling parameters of a request: the client's fields over the checkpoint's defaults, within the server's limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from corellm.sampling_params import MAX_LOGPROB_TOKEN_IDS, MAX_STOP_STRINGS, RequestOutputKind, SamplingParams
from corellm_server.errors import ApiError
from corellm_server.limits import RequestLimits
from corellm_server.requests.audio import TranscriptionRequest
from corellm_server.requests.chat import ChatRequest
from corellm_server.requests.completions import CompletionRequest
from corellm_server.requests.forms import form_of
from corellm_server.requests.messages import MessagesRequest
from corellm_server.requests.responses import ResponsesRequest
from corellm_server.requests.sampling import ChoiceFields, CompletionFields

_DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's, for `/v1/completions`."""
_MOST_TOKENS = 1e9
"""Beyond any model's, so that the error names the client's field."""

_NEEDED_BY_RESPONSES = 'include: ["message.output_text.logprobs"]'
_MOST_OF_LISTS = {
    "stop_token_ids": (1 << 14, "token ids"),
    "allowed_token_ids": (1 << 17, "token ids"),
    "bad_words": (MAX_STOP_STRINGS, "strings"),
    "logprob_token_ids": (MAX_LOGPROB_TOKEN_IDS, "token ids"),
}
"""Each entry is looked at several times, in the event loop."""


def chat_params(request: ChatRequest, defaults: SamplingParams, limits: RequestLimits) -> SamplingParams:
    """The parameters of a conversation's completion.

    Raises:
        ApiError, InvalidParameterError: a value out of range; names the field.
    """
    if request.top_logprobs is not None and not request.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    given = request.max_completion_tokens
    name = "max_tokens" if given is None else "max_completion_tokens"
    max_tokens = request.max_tokens if given is None else given
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    if max_tokens is None:
        max_tokens = limits.max_tokens
    _check_count("prompt_logprobs", request.prompt_logprobs, limits.max_logprobs)
    if request.prompt_logprobs is not None and request.stream:
        raise ApiError(400, "prompt_logprobs come with a whole response; leave stream out", param="prompt_logprobs")
    return _params(request, defaults, limits, name, max_tokens, logprobs)


def completion_params(request: CompletionRequest, defaults: SamplingParams, limits: RequestLimits) -> SamplingParams:
    """The parameters of a prompt's completion.

    Raises:
        ApiError, InvalidParameterError: a value out of range; names the field.
    """
    max_tokens = _DEFAULT_COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
    if max_tokens == 0 and request.echo:
        max_tokens = 1  # only the prompt is wanted; the token is left out
    params = _params(request, defaults, limits, "max_tokens", max_tokens, request.logprobs)
    return replace(params, prompt_logprobs=request.logprobs) if request.echo else params


def responses_params(request: ResponsesRequest, defaults: SamplingParams, limits: RequestLimits) -> SamplingParams:
    """The parameters of a model response.

    Raises:
        ApiError, InvalidParameterError: a value out of range; names the field.
    """
    if request.top_logprobs and not request.wants_logprobs:
        raise ApiError(400, f"top_logprobs needs {_NEEDED_BY_RESPONSES}", param="top_logprobs")
    logprobs = (request.top_logprobs or 0) if request.wants_logprobs else None
    max_tokens = limits.max_tokens if request.max_output_tokens is None else request.max_output_tokens
    return _params(request, defaults, limits, "max_output_tokens", max_tokens, logprobs)


def messages_params(request: MessagesRequest, defaults: SamplingParams, limits: RequestLimits) -> SamplingParams:
    """The parameters of a message.

    Raises:
        ApiError, InvalidParameterError: a value out of range; names the field.
    """
    return _params(request, defaults, limits, "max_tokens", request.max_tokens, None, stop_name="stop_sequences")


def transcription_params(
    request: TranscriptionRequest, defaults: SamplingParams, limits: RequestLimits
) -> SamplingParams:
    """The parameters of audio's transcription: greedy unless asked otherwise.

    Raises:
        ApiError, InvalidParameterError: a value out of range; names the field.
    """
    _at_most("temperature", request.temperature, limits.max_temperature)
    max_tokens = limits.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    _check_length("max_completion_tokens", max_tokens, limits)
    kind = RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY
    return replace(
        defaults, n=1, temperature=request.temperature, seed=request.seed, max_tokens=max_tokens, output_kind=kind
    )


def _params(
    request: ChoiceFields,
    defaults: SamplingParams,
    limits: RequestLimits,
    length_name: str,
    max_tokens: int | None,
    logprobs: int | None,
    stop_name: str = "stop",
) -> SamplingParams:
    given_stop = getattr(request, stop_name)
    stop = [given_stop] if isinstance(given_stop, str) else given_stop or []
    if isinstance(request, CompletionFields):
        _at_most("n", request.n, limits.max_n)
        if request.stream_options is not None and not request.stream:
            raise ApiError(400, "stream_options needs stream: true", param="stream_options")
    if getattr(request, "logprob_token_ids", None) and logprobs is None:
        needed = _NEEDED_BY_RESPONSES if isinstance(request, ResponsesRequest) else "logprobs"
        raise ApiError(400, f"logprob_token_ids needs {needed}", param="logprob_token_ids")
    _at_most(stop_name, len(stop), limits.max_stop, "strings")
    for name, (most, unit) in _MOST_OF_LISTS.items():
        _at_most(name, len(getattr(request, name, None) or ()), most, unit)
    _at_most("temperature", request.temperature, limits.max_temperature)
    logprobs_name = "logprobs" if isinstance(request, CompletionRequest) else "top_logprobs"
    _check_count(logprobs_name, logprobs, limits.max_logprobs)
    _check_length(length_name, max_tokens, limits)
    given: dict[str, Any] = {
        name: getattr(request, name)
        for name in type(request).model_fields
        if name in SamplingParams.__dataclass_fields__ and getattr(request, name) is not None
    }
    given |= {
        "stop": stop, "logprobs": logprobs, "max_tokens": max_tokens, "structured_outputs": form_of(request),
    }  # fmt: skip
    kind = RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY
    return replace(defaults, **given, output_kind=kind)


def _check_length(name: str, max_tokens: int | None, limits: RequestLimits) -> None:
    _at_most(name, max_tokens, limits.max_tokens or _MOST_TOKENS)
    if max_tokens is not None and max_tokens < 1:
        raise ApiError(400, f"{name} must be at least 1, got {max_tokens}", param=name)


def _check_count(name: str, value: int | None, limit: int) -> None:
    _at_most(name, value, limit)
    if value is not None and value < 0:
        raise ApiError(400, f"{name} must be at least 0, got {value}", param=name)


def _at_most(name: str, value: float | None, limit: float | None, unit: str = "") -> None:
    if value is not None and limit is not None and value > limit:
        shown = f"{value:.12g}" if abs(value) < 1e12 else "an absurdly large number"
        raise ApiError(400, f"{name} is limited to {limit:.12g}{unit and ' ' + unit} here, got {shown}", param=name)
