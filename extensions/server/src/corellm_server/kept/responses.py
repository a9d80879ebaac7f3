"""The responses that a server keeps, and those that are made in the background. Each key finds its own alone.

Knows requests, ids and errors; rows are the table's, which is asked in a thread: a slow or failing disk holds up
only the requests that need it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import sqlite3
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import msgspec

from corellm_server.errors import ApiError, shutting_down
from corellm_server.exchange import Exchange
from corellm_server.intake import Intake
from corellm_server.json_text import VALUE_BYTES, count_values
from corellm_server.kept.background import BackgroundRun, Outputs
from corellm_server.kept.items import listed
from corellm_server.kept.table import Found, ResponseTable, Row
from corellm_server.options import ServerOptions
from corellm_server.receiving import QUICK_BYTES
from corellm_server.requests.responses import ResponsesRequest
from corellm_server.responses.model_response import ModelResponse

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_ID = re.compile(r"resp_[0-9a-f]{32}", re.ASCII)
_UNFINISHED = ("queued", "in_progress")
_WHOLE = ("completed", "incomplete")


class Place(NamedTuple):
    """Where a response is kept."""

    owner: str
    previous: str | None
    input: bytes


class _Output(msgspec.Struct):
    """What of a response goes into the next prompt."""

    output: list[Any]


def open_table(options: ServerOptions) -> ResponseTable:
    """Where a server keeps responses.

    Raises:
        ConfigError: the file cannot be used.
    """
    return ResponseTable(
        options.responses_store, max_kept=options.responses_max_kept, max_bytes=options.responses_max_bytes,
        max_seconds=options.responses_max_seconds,
    )  # fmt: skip


def owner_of(exchange: Exchange) -> str:
    """Whose responses a request may see: its key's; all clients' of a server without keys."""
    return exchange.salt or ""


class KeptResponses:
    """Keeps responses.

    Args:
        options: where, and how many.
        max_bytes: most bytes of a conversation.
        intake: responses in the background have places in.
        hold: counts memory that a request needs.
        on_change: called with the number of kept responses and their bytes.

    Raises:
        ConfigError: the file cannot be used.
    """

    def __init__(
        self,
        options: ServerOptions,
        max_bytes: int,
        intake: Intake,
        hold: Callable[[Exchange, int], None],
        on_change: Callable[[int, int], None],
    ) -> None:
        self._options, self._max_conversation = options, max_bytes
        self._intake, self._hold, self._on_change = intake, hold, on_change
        self._table = open_table(options)
        self._runs: dict[str, BackgroundRun] = {}
        self._thread = ThreadPoolExecutor(1, "corellm-kept")
        on_change(*self._table.totals())

    def check(self, body: ResponsesRequest) -> None:
        """Return if a request asks for nothing that is not kept.

        Raises:
            ApiError: 400, it does.
        """
        if body.background and body.store is False:
            raise ApiError(400, "background needs store: a client comes back for the response", param="background")
        for param in ("background", "previous_response_id"):
            if getattr(body, param) and not self._options.responses_max_kept:
                told = "no responses are kept here; leave it out, send the whole conversation, and wait"
                raise ApiError(400, f"{param}: {told}", param=param, code="unsupported_parameter")

    async def place(self, exchange: Exchange, body: ResponsesRequest) -> Place | None:
        """Where the response to a request is kept; None if it is not.

        Raises:
            ApiError: 400, it is too large to be kept, and has to be.
        """
        if body.store is False or not self._options.responses_max_kept:
            return None
        given = await exchange.aside(lambda: msgspec.json.encode(body.own_items))
        if len(given) <= self._options.responses_max_bytes:
            return Place(owner_of(exchange), body.previous_response_id, given)
        if body.background:
            most = f"the {self._options.responses_max_bytes} bytes that are kept (--responses-max-bytes)"
            raise ApiError(400, f"input is larger than {most}; send it without background", param="input")
        return None

    async def keep(self, place: Place, response: dict[str, Any], events: bytes | None = None) -> dict[str, Any]:
        """Keep a response; returns it as the client is told: `store` is false if it is too large by itself.

        Raises:
            ApiError: 500, the disk failed.
        """
        is_kept = await self._changing(lambda: self._put(place, response, events))
        return response if is_kept else {**response, "store": False}

    async def keeping(
        self, place: Place, events: AsyncGenerator[dict[str, Any], None]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The events of a stream, whose response is kept before the last one: a client may go on with it at once."""
        async with contextlib.aclosing(events):
            async for event in events:
                if event["type"] in ("response.completed", "response.incomplete"):
                    event["response"] = await self.keep(place, event["response"])
                yield event

    async def begin(
        self, exchange: Exchange, place: Place, response: ModelResponse, outputs: Outputs, *, is_streamed: bool
    ) -> BackgroundRun:
        """Make a response without its client, in the client's place in the server.

        Args:
            exchange: the request.
            place: where the response is kept.
            response: makes it.
            outputs: of the engine.
            is_streamed: whether clients may ask for its events.

        Raises:
            ApiError: 500, the disk failed; 503, the server ends.
        """
        await self.keep(place, response.now("queued"))
        self._intake.leave(exchange, 0)
        run = BackgroundRun(response, place.owner, self._intake, exchange.num_bytes, is_streamed=is_streamed)
        self._intake.enter(run)
        exchange.num_bytes, self._runs[run.id] = 0, run

        async def keep(whole: dict[str, Any], events: bytes) -> None:
            try:
                if self._runs.get(run.id) is not run:
                    return  # deleted
                kept = await self.keep(place, whole, events if is_streamed else None)
                if not kept["store"]:
                    most = self._options.responses_max_bytes
                    raise ApiError(500, f"the response is larger than the {most} bytes that are kept", code="too_large")
            finally:
                self._runs.pop(run.id, None)
                told = "request %s: its response in the background is %s, with %d tokens"
                logger.info(told, exchange.request_id, whole["status"], exchange.num_output_tokens)

        run.begin(outputs, keep, self._options.request_timeout)
        return run

    async def conversation(self, exchange: Exchange, id: str) -> list[Any]:
        """The items of a response and of those before it: inputs and outputs, the oldest first.

        Raises:
            ApiError: 400, they are not there, not complete, or too large; 500, the disk failed; 503, there is no room.
        """
        try:
            items = await self._items(exchange, id, with_last=True)
        except ApiError as error:
            error.param = "previous_response_id"
            if error.status == 404:
                error.status, error.code = 400, "previous_response_not_found"
            raise
        return items

    async def input_items(self, exchange: Exchange, id: str) -> list[dict[str, Any]]:
        """The items that a response was made of, with those before it, the oldest first, with ids.

        Raises:
            ApiError: 404, it is not there, or one before it; 500, the disk failed.
        """
        items = await self._items(exchange, id, with_last=False)
        return await exchange.aside(lambda: listed(items, id))

    async def find(self, exchange: Exchange, id: str) -> BackgroundRun | Found:
        """A response of the client's key: while it is made in the background, or kept.

        Raises:
            ApiError: 404, there is none; 500, the disk failed.
        """
        run = self._run_of(exchange, id)
        if run is not None:
            return run
        row = await self._call(lambda: self._table.get(id, owner_of(exchange))) if _ID.fullmatch(id) else None
        if row is None:
            raise _not_found(id)
        return _lost(row) if row.status in _UNFINISHED else row

    async def delete(self, exchange: Exchange, id: str) -> None:
        """Delete a response, and end it if it is still made.

        Raises:
            ApiError: 404, there is none; 500, the disk failed.
        """
        run = self._run_of(exchange, id)
        if run is not None:
            del self._runs[id]
            run.stop(None)
            await run.wait()
        owner = owner_of(exchange)
        was_there = bool(_ID.fullmatch(id)) and await self._changing(lambda: self._table.delete(id, owner))
        if not was_there and run is None:
            raise _not_found(id)

    async def close(self) -> None:
        """End what is made in the background, keep it as it is, and close the file."""
        for run in list(self._runs.values()):
            run.stop(shutting_down())
            await run.wait()
        await self._call(self._table.close)
        self._thread.shutdown(wait=False)

    def _run_of(self, exchange: Exchange, id: str) -> BackgroundRun | None:
        run = self._runs.get(id)
        return run if run is not None and run.owner == owner_of(exchange) else None

    async def _items(self, exchange: Exchange, id: str, *, with_last: bool) -> list[Any]:
        """Items of a conversation, with the output of the last response or without."""
        if not _ID.fullmatch(id):
            raise _not_found(id)
        links = await self._call(lambda: self._table.chain(id, owner_of(exchange)))
        ids = [link.id for link in links]
        if links[-1].status is None:
            raise _not_found(id)
        if links[0].status is None:
            told = f"the conversation of response {id!r:.100} is not whole: {ids[0]!r:.100} was deleted or dropped"
            raise ApiError(404, f"{told}; send the conversation as input", code="response_not_found")
        for link in links if with_last else links[:-1]:
            if link.status not in _WHOLE:
                status = "is still in progress; wait for it" if link.id in self._runs else "did not complete"
                raise ApiError(400, f"the response {link.id!r} {status}", code="response_not_complete")
        num_bytes = sum(link.num_bytes or 0 for link in links)
        if num_bytes > self._max_conversation:
            told = f"the conversation has {num_bytes} bytes with its media, {self._max_conversation} are allowed"
            raise ApiError(400, f"{told}; begin a new one", code="request_too_large")
        self._hold(exchange, num_bytes)
        exchange.is_large = exchange.is_large or num_bytes > QUICK_BYTES
        contents = await self._call(lambda: self._table.use(ids))
        if len(contents) < len(ids):
            raise _not_found(id)  # deleted meanwhile
        parts = [part for content in contents for part in content][: None if with_last else -1]
        num_values = await exchange.aside(lambda: sum(map(count_values, parts)))
        self._hold(exchange, VALUE_BYTES * num_values)
        return await exchange.aside(lambda: _decoded(parts))

    def _put(self, place: Place, response: dict[str, Any], events: bytes | None) -> bool:
        whole = msgspec.json.encode(response)
        row = Row(response["id"], place.owner, place.previous, response["status"], place.input, whole, events)
        fits = row.num_bytes <= self._options.responses_max_bytes
        if fits:
            self._table.put(row)
        return fits

    async def _changing(self, function: Callable[[], _Result]) -> _Result:
        result, totals = await self._call(lambda: (function(), self._table.totals()))
        self._on_change(*totals)
        return result

    async def _call(self, function: Callable[[], _Result]) -> _Result:
        """Call a function of the table in its thread."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, function)
        except sqlite3.Error as error:
            logger.error("kept responses: %s", error, exc_info=error)
            told = "the database of kept responses failed, and the server's log says why; store: false does without"
            raise ApiError(500, told, code="store_failed") from error


def _decoded(parts: Sequence[bytes]) -> list[Any]:
    """The items of inputs and responses in turn."""
    items: list[Any] = []
    for number, part in enumerate(parts):
        items += msgspec.json.decode(part, type=_Output).output if number % 2 else msgspec.json.decode(part)
    return items


def _not_found(id: str) -> ApiError:
    told = "it was not kept, was deleted or dropped, or is another key's"
    return ApiError(404, f"there is no response {id!r:.100}: {told}", code="response_not_found")


def _lost(row: Found) -> Found:
    """A response that was made in the background when the server ended, or that could not be kept when it was made."""
    error = {
        "code": "server_error",
        "message": "the server ended, or could not keep the response, before it was complete",
    }
    whole = {**msgspec.json.decode(row.response), "status": "failed", "error": error}
    return row._replace(status="failed", response=msgspec.json.encode(whole))
