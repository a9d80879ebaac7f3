"""A line of the output, in OpenAI's format: the response to a request, or why there was none."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import msgspec

from corellm_server.batch.input_file import BatchRequest
from corellm_server.batch.transport import Reply

_ID = "batch_req_"
START = f'{{"id":"{_ID}'.encode()
"""How every line begins."""


class Response(msgspec.Struct):
    """What the server responded, error or not."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class NoResponse(msgspec.Struct):
    """Why the server was not asked."""

    code: str
    message: str


class Result(msgspec.Struct):
    """What came of a request."""

    id: str
    custom_id: str | None
    response: Response | None
    error: NoResponse | None

    @property
    def failure(self) -> str | None:
        """The kind of failure; None for success."""
        if self.response is None:
            return "invalid line"
        return f"HTTP {self.response.status_code}" if self.response.status_code >= 400 else None


@dataclass(frozen=True)
class Finished:
    """A result that is to be written, and what is counted of it: little memory, as many may wait."""

    line: bytes
    failure: str | None
    """The kind of failure."""
    told: str | None = None
    """What is told of the failure, if it is not known yet."""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0


def of_reply(request: BatchRequest, reply: Reply) -> Finished:
    """The result of a request that the server responded to."""
    exchange = reply.exchange
    body = reply.body if reply.is_json else msgspec.json.encode(reply.body.decode("utf-8", "replace"))
    result = Result(
        _new_id(), request.custom_id, Response(exchange.status, exchange.request_id, msgspec.Raw(body)), None
    )
    told = None
    if result.failure is not None:
        told = f"line {request.line}, custom_id {request.custom_id!r:.100}: {result.failure}: {exchange.failure}"
    return Finished(_encoded(result), result.failure, told, exchange.num_prompt_tokens, exchange.num_output_tokens)


def of_wrong_line(request: BatchRequest, *, is_told: bool = True) -> Finished:
    """The result of a line that has no request.

    Args:
        request: with what is wrong.
        is_told: whether that was told before.
    """
    message = f"line {request.line}: {request.wrong}"
    result = Result(_new_id(), request.custom_id, None, NoResponse("invalid_line", message))
    return Finished(_encoded(result), result.failure, None if is_told else message)


def decoded(line: bytes) -> Result | None:
    """The result that a line is; None if it is not one of ours."""
    try:
        result = msgspec.json.decode(line, type=Result)
    except (msgspec.DecodeError, RecursionError):
        return None
    is_ours = line.startswith(START) and (result.response is None) != (result.error is None)
    return result if is_ours else None


def _encoded(result: Result) -> bytes:
    return msgspec.json.encode(result) + b"\n"


def _new_id() -> str:
    return _ID + secrets.token_hex(12)
