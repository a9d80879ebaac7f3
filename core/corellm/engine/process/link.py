"""A process with an engine, and everything that goes to it and comes back: requests, calls, outputs, its end.

Knows messages, and what has come of an output; prepares no prompts. Knows no event loop: calls come from one thread,
and another thread delivers outputs.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, Protocol

from corellm.engine.process import messages
from corellm.engine.process.channel import MAX_MESSAGE_BYTES
from corellm.engine.process.codec import InFlightRequest
from corellm.engine.process.faults import to_error, to_fault
from corellm.engine.process.messages import Abort, Call, Delta, Failed, Outputs, Ready, Returned, Start
from corellm.engine.process.process import END_SECONDS, Process, Share
from corellm.engine.process.requests import pack_request
from corellm.errors import CorellmError, EngineDeadError, InvalidParameterError, PromptTooLongError
from corellm.frontend.input_processor import ProcessedPrompt
from corellm.system.log_format import is_json

logger = logging.getLogger(__name__)

_DEATH_SECONDS = 1.0
"""How long a process that closed its channel may take to exit."""


class Link(Protocol):
    """What `RemoteEngine` uses of an `EngineLink`; several of them can be one."""

    @property
    def pid(self) -> int:
        """Id of the engine's process."""

    @property
    def seconds_silent(self) -> float:
        """Seconds since the engine's last sign of life."""

    @property
    def num_steps(self) -> int:
        """Steps that the engine finished."""

    def wait_until_ready(self) -> Ready:
        """Return what the engine is, once it has loaded the model."""

    def add(
        self, request_id: str, prompt: ProcessedPrompt, params: Any, in_flight: InFlightRequest, arrival_time: float
    ) -> None:
        """Send a request."""

    def abort_request(self, request_id: str, *, silently: bool) -> None:
        """End a request now, if there is one of this id; silently: no one reads its outputs, of which some may come."""

    def call(self, future: Future[Any], function: str, arguments: Sequence[Any]) -> None:
        """Have a function called between two steps; the future gets the result."""

    def start_reading(
        self, deliver: Callable[[list[Any]], None], report_end: Callable[[EngineDeadError], None]
    ) -> None:
        """Deliver outputs from now on, and at last why the engine ended; in threads of its own."""

    def end(self) -> None:
        """End after the step in flight."""

    def close(self) -> None:
        """Free everything."""


class EngineLink:
    """Starts a process that loads a model.

    Args:
        engine_args: arguments of `EngineConfig.from_kwargs`; plain data.
        share: the engine's part of the machine; None for all of it.
    """

    def __init__(self, engine_args: Mapping[str, Any], share: Share | None = None) -> None:
        self.num_steps = 0
        """Steps that the engine finished."""
        self._last_heard = time.monotonic()
        self._requests: dict[str, InFlightRequest] = {}
        self._calls: dict[int, Future[Any]] = {}
        self._call_numbers = itertools.count()
        self._reader: threading.Thread | None = None
        self._process = Process(share)
        number, parts = (None, 1) if share is None else (share.number, share.parts)
        try:
            level = logging.getLogger().getEffectiveLevel()
            self._send(messages.encode(Start(dict(engine_args), level, is_json(), number, parts)))
        except BaseException:
            self._process.close()
            raise

    def wait_until_ready(self) -> Ready:
        """Return what the engine is, once it has loaded the model.

        Raises:
            ConfigError, CheckpointError, PluginError: the model cannot be served.
            EngineDeadError: the process ended while it loaded the model.
        """
        try:
            (data, _), *_ = self._process.channel.receive(None)  # signs of life follow, if this process was slower
        except (EOFError, OSError):
            raise EngineDeadError(
                f"the engine's process ended with {self._process.wait(_DEATH_SECONDS)} while it loaded the model"
            ) from None
        self._last_heard = time.monotonic()
        message = messages.decode_from_engine(data)
        if isinstance(message, Failed):
            raise to_error(message.fault)
        assert isinstance(message, Ready)
        return message

    @property
    def pid(self) -> int:
        """Id of the engine's process."""
        return self._process.pid

    @property
    def num_requests(self) -> int:
        """Requests that the engine has not finished."""
        return len(self._requests)

    @property
    def seconds_silent(self) -> float:
        """Seconds since the engine's last sign of life: a finished step, or once a second that it has none to do."""
        return time.monotonic() - self._last_heard

    def add(
        self, request_id: str, prompt: ProcessedPrompt, params: Any, in_flight: InFlightRequest, arrival_time: float
    ) -> None:
        """Send a request; what the engine refuses comes as an output.

        Raises:
            RequestError: the request is wrong; nothing was sent.
            EngineDeadError: the process ended, and the request with it.
        """
        data, file = pack_request(request_id, prompt, params, arrival_time)
        try:
            if len(data) > MAX_MESSAGE_BYTES:
                raise PromptTooLongError(f"the prompt has {len(prompt.token_ids)} tokens; shorten it")
            self._requests[request_id] = in_flight
            try:
                self._send(data, file)
            except EngineDeadError:
                if self._requests.pop(request_id, None) is not None:
                    raise
                # `fail_requests` has told of it meanwhile
        finally:
            if file is not None:
                os.close(file)

    def abort_request(self, request_id: str, *, silently: bool) -> None:
        """End a request now, if there is one of this id; of a process that ended, there is nothing to end.

        Until the engine says that it has ended it is one of its requests, also if no one reads its outputs: it may be
        what the engine hangs in.
        """
        # at any moment the thread that reads may find that it has finished
        if request_id in self._requests:
            with contextlib.suppress(EngineDeadError):
                self._send(messages.encode(Abort(request_id)))

    def call(self, future: Future[Any], function: str, arguments: Sequence[Any]) -> None:
        """Have the engine's process call a function between two steps; the future gets the result.

        Raises:
            EngineDeadError: the process ended.
        """
        if not future.set_running_or_notify_cancel():
            return
        number = next(self._call_numbers)
        try:
            data = messages.encode(Call(number, function, arguments))
        except (TypeError, ValueError, OverflowError) as error:
            future.set_exception(InvalidParameterError(f"{function}: {error}; give plain data to another process"))
            return
        if len(data) > MAX_MESSAGE_BYTES:
            size = f"{len(data)} bytes, at most {MAX_MESSAGE_BYTES}"
            future.set_exception(InvalidParameterError(f"{function}: its arguments take {size}; write them to a file"))
            return
        self._calls[number] = future
        self._send(data)

    def fail_requests(self, make_error: Callable[[], CorellmError]) -> list[Any]:
        """Return a last output, with an error, of each request that an engine which ended did not finish.

        Calls that wait for it fail, too.
        """
        outputs = []
        for request_id in list(self._requests):
            request = self._requests.pop(request_id, None)
            if request is not None:
                error = make_error()
                output = request.output(Delta(request_id, [], True, fault=to_fault(error)))
                output.error = error
                outputs.append(output)
        for number in list(self._calls):
            with contextlib.suppress(InvalidStateError, KeyError):
                self._calls.pop(number).set_exception(EngineDeadError("the engine's process ended"))
        return outputs

    def end(self) -> None:
        """End the process after its step in flight; calls that wait for it fail. One that hangs is killed soon."""
        self._process.end(max(0.0, END_SECONDS - self.seconds_silent))

    def kill(self) -> None:
        """End the process at once."""
        self._process.wait(0)

    def close(self) -> None:
        """Wait until everything that came was delivered, and free everything. The process was ended before."""
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join()
        self._process.close()

    def _send(self, data: bytes, file: int | None = None) -> None:
        try:
            self._process.channel.send(data, file)
        except OSError as error:
            raise EngineDeadError("the engine's process ended") from error

    def start_reading(
        self, deliver: Callable[[list[Any]], None], report_end: Callable[[EngineDeadError], None]
    ) -> None:
        """Deliver outputs from now on, and at last why the engine ended; both are called in a thread of their own."""
        self._reader = threading.Thread(
            target=self._read, args=(deliver, report_end), name="corellm-engine-reader", daemon=True
        )
        self._reader.start()

    def _read(self, deliver: Callable[[list[Any]], None], report_end: Callable[[EngineDeadError], None]) -> None:
        reason: EngineDeadError | None = None
        try:
            while True:
                for data, _ in self._process.channel.receive(None):
                    message = messages.decode_from_engine(data)
                    self._last_heard = time.monotonic()
                    if isinstance(message, Outputs):
                        self._deliver(message, deliver)
                    elif isinstance(message, Returned):
                        self._return(message)
                    elif isinstance(message, Failed):
                        reason = EngineDeadError(message.fault.message)
        except (EOFError, OSError):
            ending = self._process.wait(_DEATH_SECONDS)
            reason = reason or EngineDeadError(f"the engine's process ended with {ending}")
        except Exception as error:
            logger.exception("the engine's messages cannot be read")
            self._process.wait(0)
            reason = EngineDeadError(f"the engine's messages cannot be read: {error}")
        report_end(reason)

    def _deliver(self, message: Outputs, deliver: Callable[[list[Any]], None]) -> None:
        self.num_steps = message.num_steps
        outputs = []
        for delta in message.deltas:
            request = self._requests.get(delta.request_id)
            if request is None:
                continue  # sending it failed
            if delta.finished:
                self._requests.pop(delta.request_id, None)
            outputs.append(request.output(delta))
        deliver(outputs)

    def _return(self, message: Returned) -> None:
        future = self._calls.pop(message.number)
        with contextlib.suppress(InvalidStateError):  # failed meanwhile
            if message.fault is None:
                future.set_result(message.value)
            else:
                future.set_exception(to_error(message.fault))
