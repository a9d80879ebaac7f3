"""The engine's process: `python -P -m corellm.engine.process.engine_main SOCKET`, standard input a pipe.

The API process alone decides when it ends: by closing the channel (after the current step), or by ending itself, which
closes the pipe and ends this process at once. Knows the engine and messages; prepares no prompts.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import msgspec

from corellm.engine.llm_engine import LLMEngine
from corellm.engine.process import messages
from corellm.engine.process.channel import MAX_MESSAGE_BYTES, Channel
from corellm.engine.process.codec import RequestCodec
from corellm.engine.process.faults import to_fault
from corellm.engine.process.messages import (
    Abort,
    Add,
    Call,
    Delta,
    Failed,
    Outputs,
    Ready,
    Returned,
    Start,
)
from corellm.engine.process.requests import unpack_request
from corellm.errors import CorellmError, EngineDeadError, RequestFailedError
from corellm.system.log_format import set_up_log
from corellm.system.memory import divide_host_memory

logger = logging.getLogger(__name__)

BEAT_SECONDS = 1.0
"""The longest time without a message while steps go on or there is nothing to do."""


class EngineLoop:
    """Steps an engine and exchanges messages between steps."""

    def __init__(self, engine: LLMEngine, channel: Channel) -> None:
        self._engine, self._channel = engine, channel
        self._codec = engine.use.codec or RequestCodec()
        self._params: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(self._codec.params_type)
        self._num_steps = 0
        self._last_sent = 0.0

    def run(self) -> None:
        """Serve until the other side closes the channel.

        Raises:
            EngineDeadError: the engine stopped.
        """
        engine = self._engine
        while True:
            try:
                received = self._channel.receive(0 if engine.has_unfinished_requests() else BEAT_SECONDS)
            except EOFError:
                return
            for data, file in received:
                self._take(data, file)
            outputs: list[Any] = []
            if engine.has_unfinished_requests():
                outputs = engine.step()
                self._num_steps += 1
            if outputs or time.monotonic() - self._last_sent >= BEAT_SECONDS:
                self._send([self._codec.delta(output) for output in outputs])

    def _take(self, data: bytes, file: int | None) -> None:
        message = messages.decode_to_engine(data)
        if isinstance(message, Add):
            self._add(message, file)
        elif isinstance(message, Abort):
            self._engine.abort_request(message.request_id)
        elif isinstance(message, Call):
            self._channel.send(self._call(message))

    def _add(self, message: Add, file: int | None) -> None:
        try:
            prompt, params = unpack_request(message, file, self._params.decode)
            self._engine.add_prepared(message.request_id, prompt, params, arrival_time=message.arrival_time)
        except Exception as error:  # no request may end the engine
            logger.debug("a request was refused", exc_info=True)
            self._send([Delta(message.request_id, [], True, fault=to_fault(error))])
        finally:
            if file is not None:
                os.close(file)

    def _call(self, message: Call) -> bytes:
        try:
            function: Callable[..., Any] = resolve_name(message.function)
            data = messages.encode(Returned(message.number, function(self._engine, *message.arguments)))
            if len(data) > MAX_MESSAGE_BYTES:
                raise RequestFailedError(
                    f"{message.function}: its result takes {len(data)} bytes, at most {MAX_MESSAGE_BYTES}; have it "
                    "written to a file"
                )
            return data
        except Exception as error:
            logger.debug("%s failed", message.function, exc_info=True)
            return messages.encode(Returned(message.number, None, to_fault(error)))

    def _send(self, deltas: list[Delta]) -> None:
        """Send deltas: in one message, if that is not too long for one."""
        data = messages.encode(Outputs(self._num_steps, deltas))
        if len(data) <= MAX_MESSAGE_BYTES:
            self._channel.send(data)
            self._last_sent = time.monotonic()
        elif len(deltas) > 1:
            for delta in deltas:
                self._send([delta])
        else:
            self._engine.abort_request(deltas[0].request_id, silently=True)
            error = RequestFailedError(
                f"a step's output takes {len(data)} bytes, at most {MAX_MESSAGE_BYTES}; ask for fewer "
                "log-probabilities, or for the results of fewer tokens"
            )
            self._send([Delta(deltas[0].request_id, [], True, fault=to_fault(error))])


def sizes_of(engine: LLMEngine) -> Ready:
    """Return what the front end of a loaded model must know of it."""
    scheduler, processor = engine.scheduler, engine.input_processor
    return Ready(
        vocab_size=processor.vocab_size,
        embedding_size=processor.embedding_size,
        max_model_len=engine.max_model_len,
        max_total_tokens=scheduler.limits.max_total_tokens,
        max_num_seqs=scheduler.max_num_seqs,
        block_size=engine.config.cache.block_size,
        num_kv_blocks=scheduler.blocks.capacity,
        tasks=engine.tasks,
        reads_pairs=engine.reads_pairs,
        eos_token_ids=engine.eos_token_ids,
        findings=engine.context.findings,
    )


def _serve(channel: Channel) -> None:
    """Load the model that the first message names, and serve it."""
    ((data, _),) = channel.receive(None)
    start = messages.decode_to_engine(data)
    assert isinstance(start, Start)
    set_up_log(start.log_level, as_json=start.log_as_json, engine=start.number)
    divide_host_memory(start.parts)
    engine = LLMEngine.from_kwargs(**start.engine_args | {"media_workers": 0})  # the API process decodes media
    channel.send(messages.encode(sizes_of(engine)))
    gc.freeze()  # a full collection would hold up requests
    try:
        EngineLoop(engine, channel).run()
    finally:
        engine.shutdown()


def end_with_parent() -> None:
    """Have the kernel end this process when the other end of standard input, a pipe, is closed.

    A signal also comes while Python is deep in a library; unlike the parent's death signal of Linux it does not come
    when only a thread of the parent ends. Other systems see the channel close, between two steps.
    """
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(0, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([0], [], [], 0)[0]:  # closed before the kernel was asked
        raise SystemExit(1)


def main() -> None:
    """Serve the channel whose socket is the first argument."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they may go to a whole group of processes
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    try:
        _serve(channel)
    except EOFError:
        raise SystemExit(1) from None  # the other side ended
    except Exception as error:
        if not isinstance(error, CorellmError):
            logger.exception("the engine stopped")
            error = EngineDeadError(f"the engine stopped: {error}")
        with contextlib.suppress(OSError):  # the other side ended
            channel.send(messages.encode(Failed(to_fault(error))))
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
