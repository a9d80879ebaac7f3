"""Runs the requests of a batch: enough at once to keep the engine busy, and writes results in the input's order.

A result waits for those before it, so what is in memory is bounded by number and bytes: behind a request that takes
very long, a limited number of others run. Knows the event loop and signals; knows no formats.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import signal
import threading
from collections import deque
from dataclasses import replace
from functools import partial

from starlette.types import ASGIApp

from corellm.errors import EngineDeadError
from corellm.serving import EngineClient
from corellm_server.app import make_app
from corellm_server.batch.input_file import BatchRequest, Input
from corellm_server.batch.output_file import OutputFile
from corellm_server.batch.progress import Progress
from corellm_server.batch.results import Finished, of_reply, of_wrong_line
from corellm_server.batch.transport import post
from corellm_server.options import ServerOptions
from corellm_server.service import Service
from corellm_server.tasks import cancelled

_IN_FLIGHT = 2
"""Requests in flight for each sequence that can run: as many are prepared, or wait, as are generated."""
_WINDOW = 8
"""Requests that are held for each one that may be in flight: most of them finished, behind one that is not."""

_MOST_TRIES = 3
"""Engines, of several, that a request may be given to if each ends while it has it."""
_PAUSE_SECONDS = 0.1
"""Between two looks whether an engine serves again."""


def batch_options(options: ServerOptions, max_num_seqs: int) -> ServerOptions:
    """Options for a service without clients, that takes as many requests as keep the engine busy."""
    return replace(
        options, api_key=(), root_path="", cors_origins=(), max_queue=_IN_FLIGHT * max_num_seqs,
        responses_store=None, responses_max_kept=0,
    )  # fmt: skip


async def finish(app: ASGIApp, client: EngineClient, request: BatchRequest) -> Finished:
    """The result of a request. One whose engine ended is done again, once an engine serves.

    Args:
        app: the server's application.
        client: the engine behind it, which has such requests one after the other.
        request: a line.

    Raises:
        EngineDeadError: the engine stopped: the request has no result yet.
    """
    was_wrong = request.wrong is not None
    if request.load is not None:
        request = await asyncio.to_thread(request.load)
    if request.wrong is not None:
        return of_wrong_line(request, is_told=was_wrong)
    for _ in range(_MOST_TRIES):
        while client.dead is None and math.isinf(client.seconds_silent):
            await asyncio.sleep(_PAUSE_SECONDS)
        reply = await post(app, request.url, request.body)
        failure = reply.exchange.failure
        if failure is None or failure.code != "engine_lost":
            break
    if failure is not None and failure.code == "engine_dead":
        raise EngineDeadError(f"the engine stopped: {client.dead}")
    return of_reply(request, reply)


class BatchRun:
    """One run over the requests that have no results yet.

    Args:
        service: the model; its `max_queue` is the most requests at once.
        requests: all requests.
        output: gets the results.
        progress: of `resuming.compare`.
    """

    def __init__(self, service: Service, requests: Input, output: OutputFile, progress: Progress) -> None:
        self._app, self._client = make_app(service), service.client
        self._output, self._progress = output, progress
        self._requests = itertools.islice(requests.requests(), progress.num_done, None)
        self._next = next(self._requests, None)
        self._window: deque[asyncio.Task[Finished]] = deque()
        self._max_in_flight, self._num_in_flight = service.config.options.max_queue, 0
        self._max_bytes, self._num_bytes = service.config.limits.max_held_bytes, 0
        self._changed = asyncio.Event()
        self._signal: signal.Signals | None = None

    async def run(self) -> signal.Signals | None:
        """Run until all is done; returns the signal if one ended it before.

        Raises:
            EngineDeadError: the engine stopped.
            OutputError: the results cannot be written.
        """
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, self._stop, number)
        self._progress.start()
        try:
            self._begin_more()
            while self._window and self._signal is None:
                await self._changed.wait()
                self._changed.clear()
                self._write_finished()
                self._begin_more()
        finally:
            self._progress.stop()
            await cancelled(self._window)
        return self._signal

    def _stop(self, number: signal.Signals) -> None:
        """End soon: requests in flight are aborted, and have no results."""
        self._signal = number
        self._changed.set()

    def _write_finished(self) -> None:
        """Write the results at the front of the window."""
        while self._window and self._window[0].done():
            finished = self._window[0].result()
            self._output.append(finished.line)
            self._window.popleft()
            self._num_bytes -= len(finished.line)
            self._progress.finished(finished)

    def _begin_more(self) -> None:
        """Begin as many requests as there is room for; a single one always has room."""
        while self._next is not None and (not self._window or self._has_room(self._next.num_bytes)):
            task = asyncio.ensure_future(finish(self._app, self._client, self._next))
            task.add_done_callback(partial(self._ended, self._next.num_bytes))
            self._window.append(task)
            self._num_in_flight += 1
            self._num_bytes += self._next.num_bytes
            self._next = next(self._requests, None)

    def _has_room(self, num_bytes: int) -> bool:
        return (
            self._num_in_flight < self._max_in_flight
            and len(self._window) < _WINDOW * self._max_in_flight
            and self._num_bytes + num_bytes <= self._max_bytes
        )

    def _ended(self, num_bytes: int, task: asyncio.Task[Finished]) -> None:
        """Count the result of a request instead of its body."""
        self._num_in_flight -= 1
        self._num_bytes -= num_bytes
        if not task.cancelled() and task.exception() is None:
            self._num_bytes += len(task.result().line)
        self._changed.set()
