"""Runs the application on a socket: until it is told to stop, or the engine dies or hangs.

Knows uvicorn, signals and the order of shutting down. Told to stop, it lets no more requests in, waits for those in
flight as long as `shutdown_timeout`, and aborts the rest with an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import uvicorn

from corellm.errors import ConfigError
from corellm_server.app import make_app
from corellm_server.connections import Connections
from corellm_server.errors import ApiError, as_api_error, engine_hung, shutting_down
from corellm_server.http_connection import HttpConnection
from corellm_server.models import Models
from corellm_server.options import ServerOptions
from corellm_server.service import Service
from corellm_server.tasks import cancelled
from corellm_server.watchdog import Watchdog

logger = logging.getLogger(__name__)

_LAST_SECONDS = 1
"""Time for responses of aborted requests to get out."""
_DEAD_SECONDS = 1.0
"""Time for clients and probes to see that the engine is dead."""
_LOOK_SECONDS = 0.1
"""Between two looks at whether the engine lives."""


def bind(options: ServerOptions) -> socket.socket:
    """A socket at the address of the options, bound but not listening: nothing connects before the model is loaded.

    Raises:
        ConfigError: the address is in use, or not of this machine.
    """
    with contextlib.ExitStack() as opened:
        try:
            family, kind, _, _, address = socket.getaddrinfo(
                options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            bound = opened.enter_context(socket.socket(family, kind))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {options.host} port {options.port}: {error.strerror}; choose another --port"
            ) from error
        opened.pop_all()
    return bound


def check_certificate(options: ServerOptions) -> None:
    """Return if the certificate and its key can be used, or there are none.

    Raises:
        ConfigError: why they cannot.
    """
    if options.ssl_certfile is None:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options.ssl_certfile, options.ssl_keyfile, password=_no_password)
    except OSError as error:
        reason = error.strerror
        if isinstance(error, ssl.SSLError):
            is_other = error.reason == "KEY_VALUES_MISMATCH"
            reason = "the key is another certificate's" if is_other else "not a certificate and a private key (PEM)"
        files = f"ssl_certfile {options.ssl_certfile!r:.200}, ssl_keyfile {options.ssl_keyfile!r:.200}"
        raise ConfigError(f"{files}: {reason}") from error


def _no_password() -> str:
    raise ConfigError("ssl_keyfile: the key has a password; give one without, e.g. from openssl pkey")


def url_of(bound: socket.socket, options: ServerOptions) -> str:
    """Where a server on this socket is reached from this machine."""
    host, port = bound.getsockname()[:2]
    scheme = "http" if options.ssl_certfile is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{options.root_path}"


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers: `HttpServer` has them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves models on one socket, until it is stopped, or an engine dies or all hang.

    Args:
        service: what is served; closed at the end, its engine is not.
        bound: a bound socket; closed at the end.
        others: further models.
    """

    def __init__(self, service: Service, bound: socket.socket, others: Sequence[Service] = ()) -> None:
        self._service, self._bound = service, bound
        self._models = Models(service, *others)
        options = service.config.options
        config = uvicorn.Config(
            make_app(*self._models), http=HttpConnection,
            ws="none", lifespan="off", log_config=None, access_log=False, server_header=False, proxy_headers=False,
            ssl_certfile=options.ssl_certfile, ssl_keyfile=options.ssl_keyfile, timeout_graceful_shutdown=_LAST_SECONDS,
            timeout_keep_alive=options.keep_alive_timeout,
        )  # fmt: skip
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        self._uvicorn = _Uvicorn(config)
        self._watchdog = Watchdog(self._models, options.hang_timeout)
        self._num_stops = 0
        self._stopped: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, on_listening: Callable[[], None] = lambda: None) -> int:
        """Serve until `stop`, a signal, or the engine's end; returns the exit status."""
        with asyncio.Runner(loop_factory=self._uvicorn.config.get_loop_factory()) as runner:
            return runner.run(self._run(on_listening))

    def stop(self) -> None:
        """Begin to shut down, from any thread; called again, wait for no request. A server that ended is left alone."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self._num_stops += 1
        assert self._stopped is not None
        self._stopped.set()

    async def _run(self, on_listening: Callable[[], None]) -> int:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, self._stop)
        serving = asyncio.ensure_future(self._uvicorn.serve(sockets=[]))
        make_way = self._service.intake.uploads.make_way
        connections = Connections(self._uvicorn, self._bound, self._service.config.options, make_way)
        try:
            while not self._uvicorn.started and not serving.done():
                await asyncio.sleep(0.01)
            connections.listen()
            accepting = asyncio.ensure_future(connections.run())
            on_listening()
            await self._until_stopped(serving, accepting)
            if accepting.done():
                accepting.result()  # raises
            options, dead = self._service.config.options, self._models.dead
            is_dead = dead is not None or self._watchdog.is_hung
            # requests of a dead engine end by themselves, each with that error
            seconds, ending = _DEAD_SECONDS if is_dead else options.shutdown_timeout, shutting_down
            if is_dead:
                ending = partial(engine_hung, options.hang_timeout) if dead is None else partial(as_api_error, dead)
                hung = f"it completed no step for {options.hang_timeout:g} s (--hang-timeout)"
                logger.error("the engine stopped: %s", dead or hung)
            else:
                logger.info("stopping; requests in flight have %g seconds, or until the next signal", seconds)
            await self._drain(seconds, ending)
            if is_dead:
                await asyncio.sleep(_DEAD_SECONDS)
            await cancelled([accepting])
            self._uvicorn.should_exit = True
            await serving
        finally:
            for model in self._models:
                await model.close()
            self._bound.close()
        return int(is_dead)

    async def _until_stopped(self, *tasks: asyncio.Future[None]) -> None:
        assert self._stopped is not None
        while not (self._stopped.is_set() or self._models.dead is not None or any(task.done() for task in tasks)):
            self._watchdog.look(has_work=len(self._service.intake) > 0)
            if self._watchdog.is_hung:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._stopped.wait()

    async def _drain(self, timeout: float, ending: Callable[[], ApiError]) -> None:
        """Let requests in flight finish, unless there is a second signal; those that do not are told `ending`."""
        draining = asyncio.ensure_future(self._service.intake.drain(timeout, ending))
        while not draining.done() and self._num_stops < 2:
            await asyncio.wait([draining], timeout=_LOOK_SECONDS)
        draining.cancel()
        await self._service.intake.drain(0, ending)  # what a second signal did not wait for ends with an error, too
