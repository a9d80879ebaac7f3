"""The engine for asyncio: `async for output in llm.generate(...)`, abort on cancellation. The server stands on it.

One thread owns the engine; coroutines talk to it through an inbox, it talks back through each request's queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from functools import partial
from typing import Any, Self

from corellm.engine.input_processor import ProcessedPrompt, with_request_id
from corellm.engine.llm_engine import LLMEngine
from corellm.errors import CorellmError, EngineDeadError, InvalidParameterError, RequestFailedError
from corellm.outputs import RequestOutput
from corellm.sampling_params import SamplingParams
from corellm.worker.process import usable_cpus

logger = logging.getLogger(__name__)


class _Stream:
    """Where a request's outputs go: the newest one, for the coroutine that waits in its event loop.

    Outputs are cumulative, so a slow reader misses nothing by getting only the newest.
    """

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        """The caller's name for the request."""
        self.is_aborted = False
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._newest: RequestOutput | BaseException | None = None

    def put(self, item: RequestOutput | BaseException) -> None:
        """Called from the engine's thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._set, item)

    def _set(self, item: RequestOutput | BaseException) -> None:
        if not (isinstance(self._newest, RequestOutput) and self._newest.finished):  # a final output stays
            self._newest = item
        self._changed.set()

    async def get(self) -> RequestOutput:
        """Wait for something new.

        Raises:
            BaseException: what was put instead of an output.
        """
        await self._changed.wait()
        self._changed.clear()
        item = self._newest
        assert item is not None
        if isinstance(item, BaseException):
            raise item
        return item


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
        """By the engine's own names, which are never used again; callers' names may be."""
        self._futures: set[Future[Any]] = set()
        # text never waits for somebody else's media to be decoded
        self._text_pool = ThreadPoolExecutor(1, thread_name_prefix="corellm-text")
        self._media_pool = ThreadPoolExecutor(usable_cpus() + 1, thread_name_prefix="corellm-media")
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
    ) -> AsyncGenerator[RequestOutput, None]:
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
        prepare = partial(self.engine.input_processor.process, prompt)
        has_media = isinstance(prompt, Mapping) and bool(prompt.get("multi_modal_data"))
        async with contextlib.aclosing(self._stream(prepare, has_media, sampling_params, request_id)) as outputs:
            async for output in outputs:
                yield output

    async def chat(
        self,
        messages: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        **chat_args: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer a conversation; `chat_args` as for `LLM.chat`. Otherwise like `generate`."""
        prepare = partial(self.engine.input_processor.process_chat, messages, **chat_args)
        has_media = _has_parts(messages)
        async with contextlib.aclosing(self._stream(prepare, has_media, sampling_params, request_id)) as outputs:
            async for output in outputs:
                yield output

    async def abort(self, request_id: str) -> None:
        """End a request; whoever iterates over it gets its last output with the finish reason `"abort"`."""
        for name, stream in list(self._streams.items()):
            if stream.request_id == request_id:
                stream.is_aborted = True  # it may not have reached the engine yet
                self._inbox.put(partial(self.engine.abort_request, name))

    async def _stream(
        self,
        prepare: Callable[[], ProcessedPrompt],
        has_media: bool,
        params: SamplingParams | None,
        request_id: str | None,
    ) -> AsyncGenerator[RequestOutput, None]:
        name = str(next(self._ids))
        stream = _Stream(f"async-{name}" if request_id is None else request_id)
        if any(other.request_id == stream.request_id for other in self._streams.values()):
            raise InvalidParameterError(f"request id {stream.request_id!r} is running already", param="request_id")
        self._streams[name] = stream
        finished = False
        try:
            if self._dead is not None:  # looked at after registering: dying tells everybody who is registered
                raise EngineDeadError(str(self._dead)) from self._dead
            pool = self._media_pool if has_media else self._text_pool
            processed = await asyncio.get_running_loop().run_in_executor(pool, prepare)
            self._inbox.put(partial(self._add, name, processed, params))
            while not finished:
                output = await stream.get()
                finished = output.finished
                if output.error is not None:
                    raise output.error
                yield output
        finally:
            del self._streams[name]
            if not finished:
                self._inbox.put(partial(self.engine.abort_request, name, silently=True))

    # --- in the engine's thread -------------------------------------------------------------------------------------

    def _add(self, name: str, processed: ProcessedPrompt, params: SamplingParams | None) -> None:
        stream = self._streams.get(name)
        if stream is None:
            return  # cancelled meanwhile
        try:
            self.engine.add_request(name, processed, params)
        except CorellmError as error:
            stream.put(with_request_id(error, stream.request_id))
        except Exception as error:  # no request may end the engine
            logger.exception("adding a request failed")
            stream.put(RequestFailedError(f"adding the request failed with {type(error).__name__}"))
        else:
            if stream.is_aborted:
                self.engine.abort_request(name)

    def _deliver(self, output: RequestOutput) -> None:
        stream = self._streams.get(output.request_id)
        if stream is not None:
            output.request_id = stream.request_id
            stream.put(output)

    def _run(self) -> None:
        """Take in what was asked, step, hand out; sleep when there is nothing to do."""
        try:
            while not self._stopping:
                self._take_in(wait=not self.engine.has_unfinished_requests())
                if self.engine.has_unfinished_requests():
                    for output in self.engine.step():
                        self._deliver(output)
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
        for stream in list(self._streams.values()):
            stream.put(error)
        for future in list(self._futures):
            _fail(future, error)

    def close(self) -> None:
        """Stop the engine's thread, fail whoever still waits, free everything. Blocks until that is done."""

        def stop() -> None:
            self._stopping = True

        self._inbox.put(stop)
        self._thread.join()
        for pool in (self._text_pool, self._media_pool):
            pool.shutdown(wait=False, cancel_futures=True)
        self.engine.shutdown()

    def call_in_engine(self, function: Callable[[LLMEngine], Any]) -> Future[Any]:
        """Run a function in the engine's thread between two steps, e.g. to read its state.

        Raises:
            EngineDeadError: from the future, if the engine stops before.
        """
        future: Future[Any] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return  # whoever asked has gone
            try:
                result = function(self.engine)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        self._inbox.put(call)
        if self._dead is not None:
            _fail(future, self._dead)
        return future


def _fail(future: Future[Any], error: Exception) -> None:
    """Fail a future that nobody will answer any more, unless that has happened already."""
    with contextlib.suppress(InvalidStateError):
        future.set_exception(error)


def _has_parts(messages: Any) -> bool:
    """Whether a conversation may bring media: where no content is in parts there are none."""
    if not isinstance(messages, Sequence):
        return False
    return any(isinstance(m, Mapping) and not isinstance(m.get("content"), (str, type(None))) for m in messages)
