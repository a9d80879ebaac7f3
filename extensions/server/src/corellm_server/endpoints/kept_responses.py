"""`GET` and `DELETE /v1/responses/ID`, its `cancel` and its `input_items`: what is kept."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from corellm_server.endpoints.replies import ID_ERRORS, STREAM, declared, json_response
from corellm_server.errors import ApiError
from corellm_server.exchange import exchange_of
from corellm_server.kept.background import BackgroundRun
from corellm_server.kept.items import page_of
from corellm_server.kept.table import Found
from corellm_server.responses.events import EventStream
from corellm_server.service import Service

_PATH = "/v1/responses/{response_id}"
_Limit = Annotated[int, Query(json_schema_extra={"minimum": 1, "maximum": 100})]


class DeletedResponse(BaseModel):
    """A response that is not kept any more."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class ItemList(BaseModel):
    """Items of a response's input, a page of them."""

    object: Literal["list"]
    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool


def kept_response_routes(service: Service) -> APIRouter:
    """The endpoints, for one server."""
    router, kept = APIRouter(), service.kept

    @router.get(_PATH, **declared("Response", ID_ERRORS, content=STREAM))
    async def retrieve_response(
        response_id: str, request: Request, stream: bool = False, starting_after: int | None = None
    ) -> Response:
        """A kept response; or the events of one that was begun with `background` and `stream`."""
        found = await kept.find(exchange_of(request.scope), response_id)
        if stream:
            return await EventStream.of(_events(found, -1 if starting_after is None else max(-1, starting_after)))
        return _whole(found)

    @router.delete(_PATH, responses=ID_ERRORS)
    async def delete_response(response_id: str, request: Request) -> DeletedResponse:
        """Delete a response; one that is made in the background is ended."""
        await kept.delete(exchange_of(request.scope), response_id)
        return DeletedResponse(id=response_id)

    @router.post(_PATH + "/cancel", **declared("Response"))
    async def cancel_response(response_id: str, request: Request) -> Response:
        """End a response that is made in the background; one that has ended is left as it is."""
        exchange = exchange_of(request.scope)
        found = await kept.find(exchange, response_id)
        if isinstance(found, BackgroundRun):
            found.stop(None)
            await found.wait()
            found = await kept.find(exchange, response_id)
        assert isinstance(found, Found)
        if not msgspec.json.decode(found.response)["background"]:
            told = "was not made in the background: only such a response can be cancelled"
            raise ApiError(400, f"response {response_id!r} {told}", param="response_id")
        return _whole(found)

    @router.get(_PATH + "/input_items", **declared(ItemList, ID_ERRORS))
    async def list_input_items(
        response_id: str,
        request: Request,
        limit: _Limit = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> Response:
        """The items that a response was made of, with those of earlier responses."""
        exchange = exchange_of(request.scope)
        items = await kept.input_items(exchange, response_id)
        page = await exchange.aside(lambda: page_of(items, limit=limit, order=order, after=after))
        return Response(page, media_type="application/json")

    return router


def _whole(found: BackgroundRun | Found) -> Response:
    if isinstance(found, BackgroundRun):
        return json_response(found.now)
    return Response(found.response, media_type="application/json")


def _events(found: BackgroundRun | Found, after: int) -> AsyncGenerator[dict[str, Any], None]:
    """The events after one of a number.

    Raises:
        ApiError: 400, the response was made without.
    """
    is_streamed = found.is_streamed if isinstance(found, BackgroundRun) else found.events is not None
    if not is_streamed:
        told = "only a response that was begun with background and stream has events; ask without stream"
        raise ApiError(400, f"stream: {told}", param="stream")
    return found.follow(after) if isinstance(found, BackgroundRun) else _again(found.events or b"[]", after)


async def _again(events: bytes, after: int) -> AsyncGenerator[dict[str, Any], None]:
    for event in msgspec.json.decode(events, type=list[msgspec.Raw])[after + 1 :]:
        yield msgspec.json.decode(event)
