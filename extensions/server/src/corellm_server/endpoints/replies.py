"""What endpoints share of FastAPI: the body that the gate has read, and JSON responses."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar, cast

import msgspec
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from corellm_server.exchange import exchange_of

_Body = TypeVar("_Body", bound=BaseModel)


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """The body of every response that is an error."""

    error: ErrorDetail


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorReply} for status in (400, 401, 404, 408, 413, 415, 500, 503)
}
"""Statuses of errors of a POST, for the OpenAPI document."""
GET_ERRORS: dict[int | str, dict[str, Any]] = {status: ERRORS[status] for status in (401, 500, 503)}
"""Statuses of errors of a GET, which has neither a body nor fields."""
ID_ERRORS: dict[int | str, dict[str, Any]] = {status: ERRORS[status] for status in (400, 401, 404, 500, 503)}
"""Statuses of errors of a GET or DELETE of something with an id."""
STREAM = {"text/event-stream": {"schema": {"type": "string"}}}
"""Events instead of a JSON object, for the OpenAPI document."""


OPENAI_TYPE = "x-openai-type"
"""Name of a type of `openai_types`, where a response is declared, until the document is made."""


def declared(model: type[BaseModel] | str, errors: Mapping[int | str, Any] = ERRORS, **kinds: Any) -> dict[str, Any]:
    """What a route declares for the OpenAPI document.

    Args:
        model: type of the response as JSON, or the name of one in `openai_types`.
        errors: responses with other statuses.
        kinds: what else there is of the response, such as other types of content.
    """
    whole = {OPENAI_TYPE: model} if isinstance(model, str) else {"model": model}
    return {"responses": {200: {**whole, **kinds}, **errors}, "response_model": None}


class _ReadRequest(Request):
    """A request whose body the gate has read, checked and parsed."""

    checked: BaseModel

    async def body(self) -> bytes:
        return b"{}"

    async def json(self) -> BaseModel:
        return self.checked


class JsonBody(APIRoute):
    """A route that takes its body from the gate."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, with such a request."""
        handle = super().get_route_handler()
        assert self.body_field is not None
        model = cast("type[BaseModel]", self.body_field.field_info.annotation)

        async def read(request: Request) -> Response:
            exchange, given = exchange_of(request.scope), _ReadRequest(request.scope, request.receive)
            given.checked = await exchange.aside(lambda: checked_body(model, exchange.body))
            return await handle(given)

        return read


def checked_body(model: type[_Body], fields: dict[str, Any]) -> _Body:
    """The fields that the gate has read, as their model.

    Raises:
        RequestValidationError, ApiError: a field is wrong.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in error.errors()]) from None


def json_response(value: dict[str, Any]) -> Response:
    """A response of JSON."""
    return Response(msgspec.json.encode(value), media_type="application/json")
