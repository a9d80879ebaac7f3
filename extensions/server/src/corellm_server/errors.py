"""Errors as clients get them: our own words, at most 1,000 characters, in OpenAI's shape; `dialects` has others.

Knows statuses and the typed errors of `corellm.errors`. The text of a library's exception never gets out: it may have
addresses and paths; it is logged under an id that the client is told.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from corellm.errors import CorellmError, EngineDeadError, EngineLostError, MissingExtraError, RequestError

logger = logging.getLogger(__name__)

_MAX_MESSAGE = 1000
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}")


class ApiError(CorellmError):
    """An error that a client gets.

    Args:
        status: of HTTP.
        message: who did what wrong, and the way out.
        param: the field at fault.
        code: a fixed word that programs may look at.
        headers: further headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = dict(headers or {})

    @property
    def message(self) -> str:
        """What the client is told."""
        message = _ADDRESS.sub("0x...", str(self))
        return message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 3] + "..."

    def body(self) -> dict[str, Any]:
        """The error as the JSON object that OpenAI's clients know."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        if self.status == 401:
            kind = "authentication_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def encoded(self) -> bytes:
        """The body as bytes; what is not ASCII is escaped, so that any string of a request can be repeated."""
        return json.dumps(self.body()).encode()


def unavailable(message: str, *, retry_after: int = 1) -> ApiError:
    """A 503 that asks the client to come again."""
    return ApiError(503, message, code="unavailable", headers={"Retry-After": str(retry_after)})


def no_model(name: str, known: Iterable[str]) -> ApiError:
    """A 404 for a model that is not served; `known` are those that are."""
    told = f"there is no model {name[:100]!r} here; there is {', '.join(known)}"
    return ApiError(404, told, param="model", code="model_not_found")


def shutting_down() -> ApiError:
    """A 503 of a server that was told to stop."""
    return unavailable("the server is shutting down; send the request to another one", retry_after=5)


def timed_out(seconds: float, *, sleeps: bool = False) -> ApiError:
    """A 503 for a request that was not complete after so long; `sleeps` if the model does."""
    why = ": the model sleeps, and requests wait until it wakes (POST /wake_up)" if sleeps else ""
    return ApiError(503, f"the request took longer than the {seconds:g} s allowed{why}", code="timeout")


def engine_hung(seconds: float) -> ApiError:
    """A 503 of a server whose engine completed no step for so long."""
    message = f"the engine completed no step for {seconds:g} s; the server is about to exit"
    return ApiError(503, message, code="engine_hung")


def as_api_error(error: BaseException) -> ApiError:
    """The error that a client gets for an exception; an unexpected one is logged with its traceback."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineDeadError):
        return ApiError(503, "the engine stopped; the server is about to exit", code="engine_dead")
    if isinstance(error, EngineLostError):
        return ApiError(error.status, str(error), code="engine_lost", headers={"Retry-After": "1"})
    if isinstance(error, RequestError):
        return ApiError(error.status, str(error), param=error.param)
    if isinstance(error, MissingExtraError):
        return ApiError(error.status, str(error))
    incident = secrets.token_hex(8)
    logger.error("internal error %s", incident, exc_info=error)
    return ApiError(500, f"internal error {incident}; the server's log has its cause", code="internal_error")
