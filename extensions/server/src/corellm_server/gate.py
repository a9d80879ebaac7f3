"""The gate that every request passes, before the application sees it and until its response is complete.

Order: API key, route, method, room in the server, content type, size; once all of it has come, a place in the server;
JSON or form. Then the application runs; it is cancelled when the client leaves, the deadline passes or the server
stops. Knows ASGI and limits; knows no endpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corellm.system.allocator import return_freed_memory
from corellm_server.aside import Aside
from corellm_server.errors import ApiError, as_api_error, timed_out
from corellm_server.exchange import Exchange
from corellm_server.intake import Intake
from corellm_server.keys import ApiKeys
from corellm_server.options import ServerConfig
from corellm_server.receiving import read_body, receive_body
from corellm_server.stages import stage
from corellm_server.tasks import cancelled

OPEN_ROUTES = frozenset({"/health", "/ready"})
"""Routes of probes, which have no keys."""
FORM_ROUTES = frozenset({"/v1/audio/transcriptions", "/v1/audio/translations"})
"""Routes whose bodies are forms with a file; all others are JSON."""
BODYLESS_ROUTES = frozenset({"/v1/responses/{response_id}/cancel", "/sleep", "/wake_up", "/update_weights"})
"""Routes of POST that have no body; one that comes is not read."""
_ALLOWED_BY = {
    **dict.fromkeys(("/sleep", "/wake_up", "/is_sleeping"), "--enable-sleep-mode"),
    "/update_weights": "--allowed-weights-path DIRECTORY",
    **dict.fromkeys(
        ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"), "--enable-lora --allow-runtime-lora-updating DIRECTORY"
    ),
}
"""Routes that are there with an option of `corellm serve` alone."""
_LARGE_BYTES = 4 << 20
"""Size from which on a request's memory goes back to the system, once it and all others of this size have ended."""


class Gate:
    """Pure ASGI middleware around the whole application.

    Args:
        app: what is behind the gate.
        routes: of the application.
        config: keys, limits, deadline.
        intake: counts requests.
        on_end: called with every exchange that ended, and its route.
    """

    def __init__(
        self,
        app: ASGIApp,
        routes: Sequence[BaseRoute],
        config: ServerConfig,
        intake: Intake,
        on_end: Callable[[Exchange, str], None],
    ) -> None:
        self._app, self._routes, self._config = app, routes, config
        self._intake, self._on_end = intake, on_end
        self._keys = ApiKeys(config.options.api_key)
        self._aside = Aside()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["path"], scope["root_path"] = self._below_root(scope["path"]), self._config.options.root_path
        exchange, route = Exchange(scope, send, self._aside), "other"
        try:
            if scope["path"] not in OPEN_ROUTES:
                exchange.key, exchange.salt = self._keys.caller(exchange.headers)
            route = self._route_of(scope)
            if route in BODYLESS_ROUTES:
                exchange.is_read = True
            elif scope["method"] == "POST":
                await self._receive(exchange, receive, is_form=route in FORM_ROUTES)
            await self._run(exchange, scope, receive)
        except ConnectionError:
            exchange.stop(None)
        except Exception as error:
            with contextlib.suppress(ConnectionError):
                # the application tells and raises
                await exchange.fail(exchange.failure or as_api_error(error), receive)
        finally:
            self._intake.leave(exchange, exchange.num_bytes)
            self._on_end(exchange, route)
            exchange.release()
            if exchange.num_bytes >= _LARGE_BYTES > self._intake.num_bytes:
                # its chunks lay between blocks that stay, where the allocator gives nothing back by itself
                await asyncio.to_thread(return_freed_memory)

    async def _receive(self, exchange: Exchange, receive: Receive, *, is_form: bool) -> None:
        """Receive the body, then take a place in the server, then read it."""
        limits = self._config.limits
        self._intake.check_room()
        with stage("receive"):
            chunks = await receive_body(exchange, receive, limits, self._intake, is_form=is_form)
            self._intake.enter(exchange)
            exchange.body = await exchange.aside(lambda: read_body(exchange, chunks, limits, is_form=is_form))

    def _below_root(self, path: str) -> str:
        """The path within the application, where a proxy passes its own prefix on."""
        root = self._config.options.root_path
        return path[len(root) :] if root and path.startswith(root + "/") else path

    def _route_of(self, scope: Scope) -> str:
        """The path of the request's route, as it is declared.

        Raises:
            ApiError: 404, there is none; 405, it does not take the method.
        """
        allowed: set[str] = set()
        for route in self._routes:
            match, _ = route.matches(scope)
            if match is Match.FULL:
                return str(getattr(route, "path", "other"))
            if match is Match.PARTIAL:
                allowed |= getattr(route, "methods", None) or set()
        if allowed:
            methods = ", ".join(sorted(allowed))
            raise ApiError(405, f"this URL takes {methods} only", headers={"Allow": methods})
        path, known = scope["path"], {getattr(route, "path", "") for route in self._routes}
        hint = f"did you mean /v1{path}? A client's base URL ends in /v1" if f"/v1{path}" in known else ""
        if path.startswith("/v1/v1/") and path[3:] in known:
            hint = f"did you mean {path[3:]}? Anthropic's client adds /v1 to its base URL"
        if path in _ALLOWED_BY:
            hint = f"it comes with {_ALLOWED_BY[path]}"
        raise ApiError(
            404, f"there is no {path!r:.100} here; {hint or 'the URLs are in /openapi.json'}", code="unknown_url"
        )

    async def _run(self, exchange: Exchange, scope: Scope, receive: Receive) -> None:
        """Run the application until it is done, or the exchange must end."""
        work: asyncio.Future[None] = asyncio.ensure_future(self._app(scope, _never, exchange.send))
        watch = asyncio.ensure_future(_watch(exchange, receive))
        seconds = self._config.options.request_timeout
        deadline = asyncio.get_running_loop().call_later(
            seconds, lambda: exchange.stop(timed_out(seconds, sleeps=self._intake.sleeps))
        )
        try:
            waited: set[asyncio.Future[Any]] = {work, exchange.ended}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await cancelled([work])
                reason = exchange.ended.result()
                if reason is not None:
                    await exchange.fail(reason)
            elif not work.cancelled():
                work.result()
        finally:
            deadline.cancel()
            await cancelled([work, watch])


async def _watch(exchange: Exchange, receive: Receive) -> None:
    """End the exchange when its client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass
    exchange.stop(None)


async def _never() -> Message:
    """What the application receives: its body was read by the gate, which also watches for the client's leaving."""
    message: Message = await asyncio.get_running_loop().create_future()
    return message
