"""The engine for asyncio: `async for output in llm.generate(...)`, abort on cancellation. The server stands on it.

One thread owns the engine; coroutines talk to it through an inbox, it talks back through each request's queue.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self

from corellm.engine.llm_engine import LLMEngine
from corellm.errors import CorellmError, EngineDeadError, InvalidParameterError
from corellm.outputs import RequestOutput
from corellm.sampling_params import SamplingParams

logger = logging.getLogger(__name__)


@dataclass
class _Stream:
    """Where a request's outputs go: an asyncio queue of the loop that waits for them."""

    loop: asyncio.AbstractEventLoop
    outputs: asyncio.Queue[RequestOutput | BaseException]

    def put(self, item: RequestOutput | BaseException) -> None:
        """Called from the engine's thread."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.outputs.put_nowait, item)


class AsyncLLM:
    """A loaded model that serves many coroutines at once.

    Args:
        model, **engine_args: as for `LLM`.

    Raises:
        ConfigError, CheckpointError, PluginError: the model cannot be served.

    Example:
        >>> async with AsyncLLM("demo") as llm:
        ...     async for output in llm.generate("USER: hello ASSISTANT:", SamplingParams(max_tokens=8)):
        ...         print(output.outputs[0].text)
    """

    def __init__(self, model: str, **engine_args: Any) -> None:
        self.engine = LLMEngine.from_kwargs(model=str(model), **engine_args)
        self._inbox: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._streams: dict[str, _Stream] = {}
        self._ids = itertools.count()
        self._dead: EngineDeadError | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="corellm-engine", daemon=True)
        self._thread.start()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    @property
    def dead(self) -> EngineDeadError | None:
        """Why the engine stopped; None while it serves."""
        return self._dead

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams | None = None, request_id: str | None = None
    ) -> AsyncIterator[RequestOutput]:
        """Complete a prompt, giving its state after every new token.

        Closing or cancelling the iteration aborts the request.

        Args:
            prompt: what `InputProcessor.process` takes.
            sampling_params: how to sample.
            request_id: must not be running already; None for one of ours.

        Raises:
            RequestError: the request is wrong.
            RequestFailedError: it failed while it ran.
            EngineDeadError: the engine stopped.
        """
        async for output in self._stream(
            lambda: self.engine.input_processor.process(prompt), sampling_params, request_id
        ):
            yield output

    async def chat(
        self,
        messages: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        **chat_args: Any,
    ) -> AsyncIterator[RequestOutput]:
        """Answer a conversation; `chat_args` as for `InputProcessor.process_chat`. Otherwise like `generate`."""
        prepare = lambda: self.engine.input_processor.process_chat(messages, **chat_args)  # noqa: E731
        async for output in self._stream(prepare, sampling_params, request_id):
            yield output

    async def abort(self, request_id: str) -> None:
        """End a request; whoever iterates over it gets its last output with the finish reason `"abort"`."""
        self._inbox.put(lambda: self.engine.abort_request(request_id))

    async def _stream(
        self, prepare: Callable[[], Any], params: SamplingParams | None, request_id: str | None
    ) -> AsyncIterator[RequestOutput]:
        if self._dead is not None:
            raise EngineDeadError(str(self._dead)) from self._dead
        request_id = request_id if request_id is not None else f"async-{next(self._ids)}"
        if request_id in self._streams:
            raise InvalidParameterError(f"request id {request_id!r} is running already", param="request_id")
        stream = self._streams[request_id] = _Stream(asyncio.get_running_loop(), asyncio.Queue())
        finished = False
        try:
            processed = await asyncio.to_thread(prepare)
            self._inbox.put(lambda: self._add(request_id, processed, params))
            while not finished:
                item = await stream.outputs.get()
                if isinstance(item, BaseException):
                    finished = True
                    raise item
                finished = item.finished
                if item.error is not None:
                    raise item.error
                yield item
        finally:
            self._streams.pop(request_id, None)
            if not finished:
                self._inbox.put(lambda: self.engine.abort_request(request_id, silently=True))

    # --- in the engine's thread -------------------------------------------------------------------------------------

    def _add(self, request_id: str, processed: Any, params: SamplingParams | None) -> None:
        if request_id not in self._streams:
            return  # cancelled meanwhile
        try:
            self.engine.add_request(request_id, processed, params)
        except CorellmError as error:
            self._deliver(request_id, error)

    def _deliver(self, request_id: str, item: RequestOutput | BaseException) -> None:
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.put(item)

    def _run(self) -> None:
        """Take in what was asked, step, hand out; sleep when there is nothing to do."""
        try:
            while not self._stopping:
                self._take_in(wait=not self.engine.has_unfinished_requests())
                if self.engine.has_unfinished_requests():
                    for output in self.engine.step():
                        self._deliver(output.request_id, output)
        except BaseException as error:
            logger.exception("the engine stopped")
            self._die(error if isinstance(error, EngineDeadError) else EngineDeadError(f"the engine stopped: {error}"))
        else:
            self._die(EngineDeadError("the engine was shut down"))

    def _take_in(self, *, wait: bool) -> None:
        if wait:
            self._inbox.get()()
        while not self._inbox.empty():
            self._inbox.get()()

    def _die(self, error: EngineDeadError) -> None:
        self._dead = error
        for request_id in list(self._streams):
            self._deliver(request_id, error)

    def close(self) -> None:
        """Stop the engine's thread, fail whoever still waits, free everything. Blocks until that is done."""

        def stop() -> None:
            self._stopping = True

        self._inbox.put(stop)
        self._thread.join()
        self.engine.shutdown()

    def call_in_engine(self, function: Callable[[LLMEngine], Any]) -> Future[Any]:
        """Run a function in the engine's thread between two steps, e.g. to read its state."""
        future: Future[Any] = Future()

        def call() -> None:
            try:
                future.set_result(function(self.engine))
            except Exception as error:
                future.set_exception(error)

        self._inbox.put(call)
        return future
