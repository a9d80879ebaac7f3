"""Accepts connections: at most so many, and none that waits for its client without end.

Knows sockets, and what uvicorn notes of a connection; knows no request. Nothing here runs per
request: all connections are looked at together, once a second; a new one costs the same however many there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import resource
import socket
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import uvicorn

from corellm.errors import ConfigError
from corellm_server.http_connection import HttpConnection
from corellm_server.options import ServerOptions

logger = logging.getLogger(__name__)

_BACKLOG = 2048
_LOOK_SECONDS = 1.0
_FULL_SECONDS = 0.05
"""Time between two looks for room, where all connections have requests in flight."""
_GRACE_SECONDS = 1.0
"""Time in which a request must come after its connection, or after the one before, where all are taken."""
_OTHER_DESCRIPTORS = 256
"""Descriptors for files, child processes and media of requests."""


class Connections:
    """The connections of one server.

    Args:
        server: speaks HTTP on them; has started, without sockets of its own.
        bound: a bound socket.
        options: how many connections, and how long clients may take.
        make_way: has a request whose body stalls end soon, where all connections have requests.
    """

    def __init__(
        self, server: uvicorn.Server, bound: socket.socket, options: ServerOptions, make_way: Callable[[], object]
    ) -> None:
        self._config, self._state, self._bound = server.config, server.server_state, bound
        self._open = cast("set[HttpConnection]", server.server_state.connections)  # all of them are made here
        self._max, self._timeout = options.max_connections, options.client_timeout
        self._make_way = make_way
        self._opening: OrderedDict[HttpConnection, tuple[asyncio.Future[None], float]] = OrderedDict()
        """Connections before the end of their TLS handshake: what waits for it, and since when."""
        self._waiting: dict[HttpConnection, tuple[object, float]] = {}
        """What each connection waits for its client to do, and since when."""
        self._idle: deque[HttpConnection] = deque()
        """Connections that had no request when they were last looked at, the longest idle first."""
        self._looked = -math.inf

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
                connection.on_made = partial(self._opening.pop, connection, None)
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
            self._opening.pop(connection, None)

    async def _make_room(self) -> None:
        """Return once there is room for a connection."""
        while len(self._open) + len(self._opening) >= self._max:
            if self._close_one():
                await asyncio.sleep(0)
                continue
            self._make_way()
            await asyncio.sleep(_FULL_SECONDS)

    def _close_one(self) -> bool:
        """Close the connection that has had no request for longest, if it had time for one."""
        latest = time.monotonic() - _GRACE_SECONDS
        closes: list[tuple[float, Callable[[], object]]] = []
        if self._opening:
            opening, since = next(iter(self._opening.values()))
            closes.append((since, opening.cancel))
        if not self._idle and self._looked < time.monotonic() - _FULL_SECONDS:
            self._look()
        while self._idle:
            connection = self._idle[0]
            awaited, since = self._waiting[connection]
            if connection in self._open and _is_idle(connection) and _awaited(connection) == awaited:
                closes.append((since, partial(self._abort, connection)))
                break
            self._idle.popleft()
        since, close = min(closes, key=lambda found: found[0], default=(math.inf, bool))
        if since < latest:
            close()
        return since < latest

    def _abort(self, connection: HttpConnection) -> None:
        self._idle.popleft()
        connection.transport.abort()

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
        self._waiting, self._looked = {}, now
        for connection in self._open:
            if connection.transport.get_write_buffer_size() or _is_idle(connection):
                awaited = _awaited(connection)
                known, since = before.get(connection, (None, math.nan))
                self._waiting[connection] = (awaited, since if known == awaited else now)
        idle = filter(_is_idle, self._waiting)
        self._idle = deque(sorted(idle, key=lambda connection: self._waiting[connection][1]))


def _awaited(connection: HttpConnection) -> object:
    """What a connection waits for its client to do; another value once the client did something."""
    unsent = connection.transport.get_write_buffer_size()
    return connection.cycle, connection.timeout_keep_alive_task, unsent


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
