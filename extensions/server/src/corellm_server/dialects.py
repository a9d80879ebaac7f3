"""What the APIs do not have in common around their bodies: how errors are told, how streams end, headers with ids.

Knows the paths of APIs, as errors are told before there is a route; knows no fields.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from corellm_server.errors import ApiError

MESSAGES_PATH = "/v1/messages"
"""Anthropic's API is this URL, and what is below it."""


class Dialect(NamedTuple):
    """An API's form of errors, of the ends of streams, and of headers with ids."""

    error_body: Callable[[ApiError, str], dict[str, Any]]
    """An error and the request's id to a JSON object."""
    error_event: bytes
    """What an event with an error begins with."""
    end: bytes
    """What a stream ends with."""
    id_headers: tuple[bytes, ...]
    """Headers of responses that have the request's id."""


_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Anthropic's types of errors by status, beside those of all other ones."""

_DETAILS = {"thread": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}}
"""Refused fields, and the words on which Anthropic's client sends the request again without them."""


def _error_of_messages(error: ApiError, request_id: str) -> dict[str, Any]:
    """An error as Anthropic's clients know it: they are told its field in the message alone."""
    message = error.message
    if error.param is not None and error.param not in message:
        place, colon, told = message.partition(": ")
        is_within = bool(colon) and error.param.startswith(place)  # the message begins with a shorter path
        message = ApiError(error.status, f"{error.param}: {told if is_within else message}").message
    kind = _KINDS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    details = {"details": _DETAILS[error.param]} if error.param in _DETAILS else {}
    return {"type": "error", "error": {"type": kind, "message": message, **details}, "request_id": request_id}


_OPENAIS = Dialect(lambda error, _: error.body(), b"", b"data: [DONE]\n\n", (b"x-request-id",))
_ANTHROPICS = Dialect(_error_of_messages, b"event: error\n", b"", (b"x-request-id", b"request-id"))


def dialect_of(path: str) -> Dialect:
    """The dialect of a URL's API."""
    is_messages = path == MESSAGES_PATH or path.startswith(MESSAGES_PATH + "/")
    return _ANTHROPICS if is_messages else _OPENAIS
