"""One request and its response, as the gate and the endpoints share them.

Knows ASGI messages: whether a response began, whether it is a stream of events, which headers it gets. Knows no routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.types import Message, Receive, Scope, Send

from corellm.outputs import RequestOutput
from corellm_server.aside import Aside
from corellm_server.dialects import dialect_of
from corellm_server.errors import ApiError
from corellm_server.stages import note_stages

if TYPE_CHECKING:
    from corellm_pooling.results import PoolingOutput, PoolingRequestOutput

_Result = TypeVar("_Result")
_SANE_ID = re.compile(rb"[\w.:-]{1,128}", re.ASCII)
_DISCARD_SECONDS = 2.0
"""How long a client that was refused may go on sending."""
_LARGE_BYTES = 1 << 16
"""Most bytes of a response that are kept for a client after its request has ended."""
EVENTS = b"text/event-stream"


class Exchange:
    """A request, what the server knows of it, and how far its response is.

    Args:
        scope: of ASGI.
        send: of ASGI.
        aside: where large bodies are worked on.
    """

    def __init__(self, scope: Scope, send: Send, aside: Aside) -> None:
        self.client: str = (scope.get("client") or ("",))[0]
        """The address that it came from."""
        self.method: str = scope["method"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        given = self.headers.get(b"x-request-id", b"")
        self.request_id = given.decode() if _SANE_ID.fullmatch(given) else secrets.token_hex(12)
        """The client's id if it is sane, else a new one: for logs and the response's header, never for the engine."""
        self.dialect = dialect_of(scope["path"])
        """How its API tells of errors, and ends streams."""
        self.key: int | None = None
        """The number of the client's key."""
        self.salt: str | None = None
        """Separates the caches of clients with different keys."""
        self.body: dict[str, Any] = {}
        self.model: str | None = None
        """Which of several models it asks for; None of an only one."""
        self.form_field: str | None = None
        """The field by which its outputs are held to a form."""
        self.num_bytes = 0
        """Bytes that the intake counts for it."""
        self.is_large = False
        """Whether its body takes more than some milliseconds to work on."""
        self._aside = aside
        self.began = time.monotonic()
        self.status = 0
        """Status of the response, once it began; 0 before."""
        self.failure: ApiError | None = None
        """What the client was told went wrong."""
        self.num_prompt_tokens = 0
        self.num_output_tokens = 0
        """Output tokens that the engine has returned, also if the request was aborted then."""
        self.stages = note_stages()
        """What was done for it before the engine, and when."""
        self.outputs: list[RequestOutput | PoolingRequestOutput[PoolingOutput]] = []
        """The last output of each of its prompts, when they ended."""
        self.ended: asyncio.Future[ApiError | None] = asyncio.get_running_loop().create_future()
        """Set when it must end early: None if the client is not there any more."""
        self.error_events: Callable[[ApiError], bytes] | None = None
        """How a stream that began tells of an error, if not by one event."""
        self._send = send
        self.is_read = scope["method"] != "POST"
        """Whether the whole request came."""
        self._is_events = False
        self.is_complete = False
        """Whether the whole response was sent."""
        scope["corellm"] = self

    @property
    def outcome(self) -> str:
        """How it ended: `ok`, `aborted`, `client_error`, `unavailable` or `server_error`."""
        status = self.status if self.failure is None else self.failure.status
        if status < 400:
            return "ok" if self.is_complete else "aborted"
        return "client_error" if status < 500 else "unavailable" if status == 503 else "server_error"

    @property
    def replica(self) -> str | None:
        """Which of several engines computed its newest output; None for an only one."""
        metrics = self.outputs[-1].metrics if self.outputs else None
        return None if metrics is None else metrics.replica

    async def aside(self, function: Callable[[], _Result]) -> _Result:
        """Call a function that goes through the body: beside the event loop, if that is large."""
        return await self._aside.run(function) if self.is_large else function()

    def stop(self, reason: ApiError | None) -> None:
        """End it early, and tell the client why; None if there is no client any more."""
        if not self.ended.done():
            self.ended.set_result(reason)

    async def send(self, message: Message) -> None:
        """Send a part of the response; the first one gets the request's id."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._is_events = any(name == b"content-type" and EVENTS in value for name, value in message["headers"])
            ids = [(name, self.request_id.encode()) for name in self.dialect.id_headers]
            message["headers"] = [*message["headers"], *ids]
        elif not message.get("more_body"):
            if len(message.get("body", b"")) > _LARGE_BYTES:
                # its end is sent apart, once the client has read most of the rest: until then it counts as unfinished,
                # and a deadline ends it
                await self._send({**message, "more_body": True})
                await asyncio.sleep(0)  # now it is written
                message = {"type": "http.response.body"}
            self.is_complete = True
        await self._send(message)

    async def fail(self, error: ApiError, receive: Receive | None = None) -> None:
        """Tell the client of an error: as the response, as an event of a stream that began, or by cutting it off.

        Args:
            error: what went wrong.
            receive: of ASGI, if the request may not have come to its end: some clients read a response only then, and
                lose it where the connection is closed before.
        """
        self.failure = self.failure or error
        if self.is_complete:
            return
        if self.status:
            event = (self.error_events or self._error_event)(error) if self._is_events else b""
            await self.send({"type": "http.response.body", "body": event})
            return
        body = self.told(error)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **error.headers}
        encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": error.status, "headers": encoded})
        if receive is not None and not self.is_read:
            await self.send({"type": "http.response.body", "body": body, "more_body": True})
            await self._discard(receive)
            body = b""
        await self.send({"type": "http.response.body", "body": body})

    def told(self, error: ApiError) -> bytes:
        """An error as the API has it; what is not ASCII is escaped, so that any string of a request can be repeated."""
        return json.dumps(self.dialect.error_body(error, self.request_id)).encode()

    def _error_event(self, error: ApiError) -> bytes:
        return self.dialect.error_event + b"data: " + self.told(error) + b"\n\n"

    async def _discard(self, receive: Receive) -> None:
        """Read the rest of the request, for some seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_SECONDS):
                while not self.is_read:
                    self.is_read = not (await receive()).get("more_body")

    def release(self) -> None:
        """Forget the body, and the error's frames, which hold it: else it stays until the garbage collector comes."""
        self.body = {}
        link: BaseException | None = self.failure
        while link is not None:
            link.__traceback__, link = None, link.__cause__ or link.__context__


def exchange_of(scope: Scope) -> Exchange:
    """The exchange of a request that has passed the gate."""
    found: Exchange = scope["corellm"]
    return found
