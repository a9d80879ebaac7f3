"""Accepts connections: at most so many, and none that waits for its client without end.

Knows sockets, and what uvicorn notes of a connection; knows no request. Nothing here runs per
request: all connections are looked at together, once a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import resource
import socket
import time
from collections.abc import Callable
from typing import Any, cast

import uvicorn

from corellm.errors import ConfigError
from corellm.server.http_connection import HttpConnection
from corellm.server.options import ServerOptions

logger = logging.getLogger(__name__)

_BACKLOG = 2048
_LOOK_SECONDS = 1.0
_FULL_SECONDS = 0.05
"""Between two looks for room, where all connections have requests in flight."""
_GRACE_SECONDS = 1.0
"""In which a request comes after its connection, or after the one before."""
_OTHER_DESCRIPTORS = 256
"""For files, child processes and media of requests."""


class Connections:
    """The connections of one server.

    Args:
        server: speaks HTTP on them; has started, without sockets of its own.
        bound: a bound socket.
        options: how many connections, and how long clients may take.
    """

    def __init__(self, server: uvicorn.Server, bound: socket.socket, options: ServerOptions) -> None:
        self._config, self._state, self._bound = server.config, server.server_state, bound
        self._open = cast("set[HttpConnection]", server.server_state.connections)  # all of them are made here
        self._max, self._timeout = options.max_connections, options.client_timeout
        self._opening: dict[HttpConnection, tuple[asyncio.Future[None], float]] = {}
        """Connections before the end of their TLS handshake: what waits for it, and since when."""
        self._waiting: dict[HttpConnection, tuple[object, float]] = {}
        """What each connection waits for its client to do, and since when."""

    def listen(self) -> None:
        """Let clients connect; they are served once `run` runs."""
        self._bound.setblocking(False)
        self._bound.listen(_BACKLOG)

    async def run(self) -> None:
        """Accept connections until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._cut_off())  # if it fails, so does this
            while True:
                try:
                    accepted, _ = await loop.sock_accept(self._bound)
                except OSError as error:  # its client left, or there is no descriptor
                    logger.warning("a connection was not accepted: %s", error.strerror)
                    await asyncio.sleep(_LOOK_SECONDS)
                    continue
                with contextlib.ExitStack() as opened:
                    opened.enter_context(accepted)
                    await self._make_room()
                    opened.pop_all()
                connection = HttpConnection(self._config, self._state, app_state={})
                opening = asyncio.ensure_future(self._serve(connection, accepted))
                self._opening[connection] = opening, time.monotonic()  # counted now: the next one may be here already

    async def _serve(self, connection: HttpConnection, accepted: socket.socket) -> None:
        """Give a connection to uvicorn, after the TLS handshake; one that fails is closed."""
        tls: dict[str, Any] = {}
        if self._config.ssl is not None:
            tls = {"ssl": self._config.ssl, "ssl_handshake_timeout": self._timeout}
        try:
            with contextlib.suppress(OSError):
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, accepted, **tls)
        finally:
            del self._opening[connection]

    async def _make_room(self) -> None:
        """Return once there is room for a connection; the one without a request for longest makes it."""
        while len(self._open | self._opening.keys()) >= self._max:
            self._look()
            idle: list[tuple[float, Callable[[], object]]] = [
                (since, c.transport.abort) for c, (_, since) in self._waiting.items() if _is_idle(c)
            ]
            idle += [(since, opening.cancel) for opening, since in self._opening.values()]
            since, close = min(idle, key=lambda found: found[0], default=(math.inf, lambda: None))
            has_room = since < time.monotonic() - _GRACE_SECONDS
            if has_room:
                close()
            await asyncio.sleep(0 if has_room else _FULL_SECONDS)

    async def _cut_off(self) -> None:
        """Abort connections whose clients took too long."""
        while True:
            await asyncio.sleep(min(_LOOK_SECONDS, self._timeout / 4))
            self._look()
            latest = time.monotonic() - self._timeout
            for connection, (_, since) in self._waiting.items():
                if since < latest and not _is_kept_alive(connection):
                    connection.transport.abort()

    def _look(self) -> None:
        """Find the connections that wait for their clients; those whose clients did something begin anew."""
        now, before = time.monotonic(), self._waiting
        self._waiting = {}
        for connection in self._open:
            unsent = connection.transport.get_write_buffer_size()
            if unsent or _is_idle(connection):
                awaited = (connection.cycle, connection.timeout_keep_alive_task, unsent)
                known, since = before.get(connection, (None, math.nan))
                self._waiting[connection] = (awaited, since if known == awaited else now)


def _is_idle(connection: HttpConnection) -> bool:
    """Whether a connection has no request in flight, and nothing left to send."""
    has_request = connection.cycle is not None and not connection.cycle.response_complete
    return not has_request and not connection.transport.get_write_buffer_size()


def _is_kept_alive(connection: HttpConnection) -> bool:
    """Whether a connection had a request and no byte of the next one; uvicorn closes it after its own time."""
    is_timed = connection.timeout_keep_alive_task is not None and not connection.transport.is_closing()
    return is_timed and _is_idle(connection)


def allow_descriptors(max_connections: int) -> None:
    """Let this process have as many files open as its connections need.

    Raises:
        ConfigError: the system does not allow so many.
    """
    wanted = max_connections + _OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise ConfigError(
            f"max_connections={max_connections} needs {wanted} open files, this process may have {hard}: raise its "
            "limit (ulimit -n, LimitNOFILE=), or lower --max-connections"
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
