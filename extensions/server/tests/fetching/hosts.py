"""Hosts on the loopback interface that behave as a test says, and count connections."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal

from corellm.fetch_settings import FetchSettings
from corellm_server.fetching.fetcher import Fetcher

CERTIFICATE = Path(__file__).with_name("media.test.pem")
"""The certificate of the host `media.test`, signed by itself, with its key."""
Respond = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Host:
    """One listening host; what it was asked, and whether clients closed their connections."""

    port: int = 0
    heads: list[bytes] = field(default_factory=list)
    num_connections: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def listening(respond: Respond, *, tls: bool = False) -> AsyncIterator[Host]:
    """A host that reads the head of a request, responds, and waits for the client to close where `respond` does not."""
    host = Host()
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host.num_connections += 1
        writers.append(writer)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            host.heads.append(head)
            await respond(head, writer)
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client closed: what many tests are about
        finally:
            writer.close()
            host.closed.set()

    context = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    host.port = server.sockets[0].getsockname()[1]
    try:
        yield host
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()  # or one that could not send everything would stay open


@contextmanager
def listening_in_thread(respond: Respond) -> Iterator[Host]:
    """Such a host in a thread of its own, for tests that have no event loop."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(listening(respond)) as host:
        yield host


def responding(content: bytes, *, close: bool = True) -> Respond:
    """Sends these bytes, head included."""

    async def respond(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(content)
        await writer.drain()
        if close:
            writer.close()

    return respond


async def silent(head: bytes, writer: asyncio.StreamWriter) -> None:
    """Never responds."""


def ok(body: bytes, **headers: str) -> bytes:
    """A response with status 200."""
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *lines, "", ""]).encode() + body


def redirect(location: str, status: int = 302) -> bytes:
    """A response that leads elsewhere."""
    return f"HTTP/1.1 {status} Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()


class Names:
    """A resolver of invented names; each list of addresses is for one call, the last for all further ones."""

    def __init__(self, **addresses: Sequence[Sequence[str]]) -> None:
        self._addresses = {name.replace("_", "."): list(turns) for name, turns in addresses.items()}
        self.calls: list[str] = []

    async def __call__(self, host: str) -> Sequence[str]:
        self.calls.append(host)
        turns = self._addresses.get(host, [()])
        return turns.pop(0) if len(turns) > 1 else turns[0]


HOME = ("127.0.0.1",)


@asynccontextmanager
async def fetching(*domains: str, names: Names | None = None, **options: Any) -> AsyncIterator[Fetcher]:
    """A fetcher to which loopback is public, unless `is_allowed` is given; others are limits."""
    others = {name: options.pop(name) for name in ("is_allowed", "verify") if name in options}
    others.setdefault("is_allowed", lambda address: address == "127.0.0.1")
    settings = FetchSettings(allowed_media_domains=domains, **options)
    fetcher = Fetcher(settings, resolve=names or Names(media_test=[HOME]), **others)
    try:
        yield fetcher
    finally:
        await fetcher.close()
