"""Asks an ASGI application in this process, as a web server would. Knows neither endpoints nor batches."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Scope

from corellm_server.exchange import Exchange, exchange_of


@dataclass(frozen=True)
class Reply:
    """A whole response."""

    exchange: Exchange
    """What the server knows of the request: its id, status, tokens, failure."""
    is_json: bool
    body: bytes


async def post(app: ASGIApp, path: str, body: bytes) -> Reply:
    """The response to a JSON body; cancelling this aborts the request."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    headers: dict[bytes, bytes] = {}
    chunks: list[bytes] = []

    async def receive() -> Message:
        if not left:  # this client waits until it has the response
            await asyncio.get_running_loop().create_future()
        return left.pop()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers.update(message["headers"])
        else:
            chunks.append(message.get("body", b""))

    scope: Scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": None, "server": None,
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
    }  # fmt: skip
    await app(scope, receive, send)
    is_json = headers.get(b"content-type", b"").startswith(b"application/json")
    return Reply(exchange_of(scope), is_json, b"".join(chunks))
