"""An engine in another process, with what `AsyncLLM` uses of an `LLMEngine`.

Prompts are prepared in this process, which loads no weights. Knows requests, messages and what has come of an output;
knows no event loop: calls come from one thread, and another thread delivers outputs.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import fields
from typing import Any

import msgspec

from corellm.config import EngineConfig
from corellm.engine.process import messages
from corellm.engine.process.channel import MAX_MESSAGE_BYTES
from corellm.engine.process.codec import InFlightRequest, RequestCodec
from corellm.engine.process.faults import to_error
from corellm.engine.process.front_end import open_front_end, refuse_early
from corellm.engine.process.items import pack_items
from corellm.engine.process.messages import (
    Abort,
    Add,
    Call,
    Failed,
    Outputs,
    Ready,
    Returned,
    Start,
)
from corellm.engine.process.process import END_SECONDS, Process
from corellm.errors import ConfigError, EngineDeadError, InvalidParameterError, PromptTooLongError
from corellm.frontend.input_processor import ProcessedPrompt
from corellm.loading.locating import locate
from corellm.sampling_params import SamplingParams
from corellm.system.log_format import is_json
from corellm.system.process import collector_paused, set_up_threads

logger = logging.getLogger(__name__)

_DEATH_SECONDS = 1.0
"""How long a process that closed its channel may take to exit."""


class RemoteEngine:
    """Starts a process that loads the model, and prepares prompts for it.

    Args:
        config: of the engine; plain data, as it goes to another process.

    Raises:
        ConfigError, CheckpointError, PluginError: the model cannot be served.
        EngineDeadError: the process ended while it loaded the model.
    """

    def __init__(self, config: EngineConfig) -> None:
        engine_args = _plain_arguments(config)
        with collector_paused():
            located = locate(config.model)  # refuses before a process is started, as the next line does
            refuse_early(config, located)
            self._codec = located.use.codec or RequestCodec()
            set_up_threads()
            self._process = Process()
            try:
                self._send(Start(engine_args, logging.getLogger().getEffectiveLevel(), is_json()))
                self._front_end, self.sizes = open_front_end(config, located, self._wait_until_ready)
            except BaseException:
                self._process.close()
                raise
        self.context, self.input_processor = self._front_end.context, self._front_end.input_processor
        self.tasks, self.reads_pairs = self.sizes.tasks, self.sizes.reads_pairs
        self.eos_token_ids = self.sizes.eos_token_ids
        self.fetching_threads = config.fetching.fetching_threads
        self.trace = None
        """Traces are the other process's."""
        self.num_steps = 0
        """Steps that the engine finished."""
        self.use = located.use
        self._default_params = located.sampling
        self._last_heard = time.monotonic()
        self._requests: dict[str, InFlightRequest] = {}
        self._calls: dict[int, Future[Any]] = {}
        self._call_numbers = itertools.count()
        self._reader: threading.Thread | None = None

    def _wait_until_ready(self) -> Ready:
        try:
            (data, _), *_ = self._process.channel.receive(None)  # signs of life follow, if this process was slower
        except (EOFError, OSError):
            raise EngineDeadError(
                f"the engine's process ended with {self._process.wait(_DEATH_SECONDS)} while it loaded the model"
            ) from None
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
    def seconds_silent(self) -> float:
        """Seconds since the engine's last sign of life: a finished step, or once a second that it has none to do."""
        return time.monotonic() - self._last_heard

    # --- as an `LLMEngine` ------------------------------------------------------------------------------------------

    def get_default_sampling_params(self) -> SamplingParams:
        """As `LLMEngine.get_default_sampling_params`."""
        return self._default_params.clone()

    def own_params(self, given: Any) -> Any:
        """As `LLMEngine.own_params`; what the loaded model alone can refuse comes as an output."""
        return self.use.own_params(given, self._default_params, self.tasks)

    def has_unfinished_requests(self) -> bool:
        """False: no step is to be made in this process."""
        return False

    def add_prepared(self, request_id: str, prompt: ProcessedPrompt, params: Any, *, arrival_time: float) -> None:
        """As `LLMEngine.add_prepared`; what the engine refuses comes as an output.

        Raises:
            RequestError: the request is wrong; nothing was sent.
            EngineDeadError: the process ended.
        """
        prompt, params = self.use.ready(prompt, params, self.sizes.max_total_tokens, self.input_processor)
        in_flight = self._codec.in_flight(prompt, params)
        items, file = pack_items(prompt.features)
        try:
            data = messages.encode(
                Add(
                    request_id,
                    prompt.token_ids,
                    msgspec.Raw(messages.encode(params)),
                    items,
                    prompt.cache_salt,
                    prompt.priority,
                    arrival_time,
                    prompt.decoder,
                    prompt.extra,
                )
            )
            if len(data) > MAX_MESSAGE_BYTES:
                raise PromptTooLongError(f"the prompt has {len(prompt.token_ids)} tokens; shorten it")
            self._requests[request_id] = in_flight
            self._send_data(data, file)
        finally:
            if file is not None:
                os.close(file)

    def abort_request(self, request_id: str, *, silently: bool = False) -> None:
        """As `LLMEngine.abort_request`; of a process that ended, there is nothing to abort."""
        if request_id in self._requests:
            if silently:
                del self._requests[request_id]
            with contextlib.suppress(EngineDeadError):
                self._send(Abort(request_id, silently))

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
        self._send_data(data)

    def shutdown(self) -> None:
        """End the process after its step in flight, and free everything."""
        self.end()
        if self._reader is not None:
            self._reader.join()
        self._process.close()
        self._front_end.closing.close()

    def end(self) -> None:
        """End the process after its step in flight; calls that wait for it fail. One that hangs is killed soon."""
        self._process.end(max(0.0, END_SECONDS - self.seconds_silent))

    # --- messages ---------------------------------------------------------------------------------------------------

    def _send(self, message: messages.ToEngine) -> None:
        self._send_data(messages.encode(message))

    def _send_data(self, data: bytes, file: int | None = None) -> None:
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
                continue  # aborted meanwhile
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


def _plain_arguments(config: EngineConfig) -> dict[str, Any]:
    """The configuration as keyword arguments of `EngineConfig.from_kwargs`.

    Raises:
        ConfigError: an argument is not plain data.
    """
    rooms = (config.model, config.cache, config.scheduler, config.multimodal)
    arguments = {f.name: getattr(room, f.name) for room in rooms for f in fields(room)}
    for name, value in arguments.items():
        try:
            messages.encode(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"{name}={value!r:.100} cannot be sent to the engine's process; give numbers, text, lists and dicts"
            ) from error
    return arguments
