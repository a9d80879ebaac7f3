"""A link whose engine keeps nobody waiting: what goes to it waits in a queue of its own, and a thread sends it.

Knows what waits, and what becomes of it if the engine ends; messages are `EngineLink`'s.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from corellm.errors import EngineDeadError
from corellm.serving import EngineLink, ProcessedPrompt, Share

MOST_WAITING = 1024
"""Requests that wait to be sent to an engine; beyond, it gets no more."""


class Request(NamedTuple):
    """What `EngineLink.add` takes."""

    request_id: str
    prompt: ProcessedPrompt
    params: Any
    in_flight: Any
    arrival_time: float


@dataclass(frozen=True)
class _Job:
    """Something to be sent."""

    send: Callable[[], None]
    drop: Callable[[], None]
    """Called in place of `send` where the engine has ended, or is not to have it."""
    request_id: str | None = None
    """Id of the request that is sent; None for a call."""


class SendingLink(EngineLink):
    """Starts a process that loads a model, as `EngineLink` does, and a thread that sends to it.

    Args:
        engine_args, share: as for `EngineLink`.
        on_unsent: gets each request that the engine does not have, nor will; in any thread.
        on_refused: gets each request that cannot be sent, and why; in the thread that sends.
    """

    def __init__(
        self,
        engine_args: Mapping[str, Any],
        share: Share | None,
        on_unsent: Callable[[Request], None],
        on_refused: Callable[[Request, Exception], None],
    ) -> None:
        self._on_unsent, self._on_refused = on_unsent, on_refused
        self._jobs: list[_Job] = []
        self._current: _Job | None = None
        self._has_ended = False
        self._changed = threading.Condition()
        super().__init__(engine_args, share)
        self._sender = threading.Thread(target=self._send_jobs, name="corellm-engine-sender", daemon=True)
        self._sender.start()

    @property
    def num_requests(self) -> int:
        """Requests that the engine has not finished, or is to get."""
        with self._changed:
            current, num_waiting = self._current, self._num_waiting
        is_packed = current is not None and current.request_id is not None and current.request_id not in self._requests
        return num_waiting + is_packed + super().num_requests  # last: one that is sent meanwhile is not missed

    @property
    def is_full(self) -> bool:
        """Whether so many requests wait to be sent that it should get no more."""
        return self._num_waiting >= MOST_WAITING

    @property
    def _num_waiting(self) -> int:
        with self._changed:
            return sum(job.request_id is not None for job in self._jobs)

    def add(self, request_id: str, prompt: ProcessedPrompt, params: Any, in_flight: Any, arrival_time: float) -> None:
        """Have a request sent; `on_unsent` or `on_refused` get it if it is not.

        Raises:
            EngineDeadError: the process ended.
        """
        request = Request(request_id, prompt, params, in_flight, arrival_time)

        def send() -> None:
            try:
                super(SendingLink, self).add(*request)
            except EngineDeadError:
                self._on_unsent(request)
            except Exception as error:  # no request may end the thread
                self._on_refused(request, error)

        if not self._put(_Job(send, partial(self._on_unsent, request), request_id)):
            raise EngineDeadError("the engine's process ended")

    def abort_request(self, request_id: str, *, silently: bool) -> None:
        """End a request now, if there is one of this id; one that is not sent yet is not sent, if no one is told."""
        with self._changed:
            waiting = [job for job in self._jobs if job.request_id == request_id]
            if waiting and silently:
                self._jobs.remove(waiting[0])
            is_current = self._current is not None and self._current.request_id == request_id
        if waiting and silently:
            waiting[0].drop()
        elif waiting or is_current or request_id in self._requests:
            self._put(_Job(partial(super().abort_request, request_id, silently=silently), lambda: None))

    def call(self, future: Future[Any], function: str, arguments: Sequence[Any]) -> None:
        """Have the engine's process call a function between two steps; the future gets the result, or that it ended."""

        def fail() -> None:
            with contextlib.suppress(InvalidStateError):
                future.set_exception(EngineDeadError("the engine's process ended"))

        def send() -> None:
            try:
                super(SendingLink, self).call(future, function, arguments)
            except EngineDeadError:
                fail()

        if not self._put(_Job(send, fail)):
            fail()

    def give_back(self) -> None:
        """Send none of the requests that wait: `on_unsent` gets them."""
        with self._changed:
            waiting = [job for job in self._jobs if job.request_id is not None]
            self._jobs = [job for job in self._jobs if job.request_id is None]
        for job in waiting:
            job.drop()

    def stop_sending(self) -> None:
        """Send no more: the engine has ended, or will."""
        with self._changed:
            self._has_ended = True
            jobs, self._jobs = self._jobs, []
            self._changed.notify()
        for job in jobs:
            job.drop()

    def close(self) -> None:
        """Close the link, and end the thread."""
        self.stop_sending()
        super().close()  # ends the process, and with it a send that it did not read
        if self._sender is not threading.current_thread():
            self._sender.join()

    def _put(self, job: _Job) -> bool:
        """Have a job done; returns False if it will not be, as the engine has ended."""
        with self._changed:
            if not self._has_ended:
                self._jobs.append(job)
                self._changed.notify()
            return not self._has_ended

    def _send_jobs(self) -> None:
        while True:
            with self._changed:
                self._current = None
                while not self._jobs and not self._has_ended:
                    self._changed.wait()
                if self._has_ended:
                    return
                self._current = self._jobs.pop(0)
                job = self._current
            job.send()
