"""The engine for asyncio: `async for output in llm.generate(...)`, abort on cancellation.

One thread owns the engine; coroutines send it calls through an inbox, and it puts outputs into each request's stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import queue
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from corellm.engine.at_exit import stop_at_exit
from corellm.engine.llm_engine import LLMEngine
from corellm.engine.maintenance import AsyncMaintenance, end_trace
from corellm.engine.stream import Stream, put_all
from corellm.errors import ConfigError, CorellmError, EngineDeadError, InvalidParameterError, RequestFailedError
from corellm.frontend.input_processor import InputProcessor, ProcessedPrompt, with_request_id
from corellm.frontend.preparation_pools import PreparationPools
from corellm.frontend.text_limit import CHEAP_CHARACTERS
from corellm.known_fields import refusing
from corellm.outputs import RequestOutput
from corellm.plugin.calls import CallOfExtension
from corellm.prompts import keys_of_each, with_keys
from corellm.sampling_params import SamplingParams
from corellm.system.fork_safety import NotPicklable, check_process

if TYPE_CHECKING:  # of an extension, which may not be installed
    from corellm_lora.lora_request import LoRARequest
    from corellm_pooling.params import PoolingParams
    from corellm_pooling.results import PoolingOutput, PoolingRequestOutput

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class AsyncLLM(AsyncMaintenance, NotPicklable):
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

    @refusing(ConfigError)
    def __init__(self, model: str | os.PathLike[str], **engine_args: Any) -> None:
        self.engine = self._load_engine(model=model, **engine_args)
        self._inbox: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._streams: dict[str, Stream] = {}
        """By the engine's own request ids, which are unique; callers may reuse theirs."""
        self._names: dict[str, str] = {}
        """From callers' request ids to the engine's."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one that the newest request came from."""
        self._futures: set[Future[Any]] = set()
        self._pools = PreparationPools(self.engine.fetching_threads)
        self._ids = itertools.count()
        self._dead: EngineDeadError | None = None
        self._busy_since: float | None = None
        """When the engine last finished a step, or got something to do; None while it has nothing to do."""
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="corellm-engine", daemon=True)
        self._thread.start()
        stop_at_exit(self._stop)

    def _load_engine(self, **engine_args: Any) -> LLMEngine:
        return LLMEngine.from_kwargs(**engine_args)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    @property
    def dead(self) -> EngineDeadError | None:
        """Why the engine stopped; None while it serves."""
        return self._dead

    @property
    def seconds_silent(self) -> float:
        """Seconds since the engine's last sign of life: a finished step, or having nothing to do."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def max_model_len(self) -> int:
        """Longest sequence, prompt and output together, that the model and the KV cache take."""
        return self.engine.scheduler.limits.max_total_tokens

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that requests may have: `generate`, or those of a model that pools."""
        return self.engine.tasks

    @property
    def reads_pairs(self) -> bool:
        """Whether two texts are joined as the tokenizer does it."""
        return self.engine.reads_pairs

    @property
    def labels(self) -> Mapping[int, str]:
        """Names of the model's classes by number, as its configuration states them."""
        return getattr(self.engine.context.hf_config, "id2label", None) or {}

    @property
    def input_processor(self) -> InputProcessor:
        """Prepares prompts, in any thread, without running them."""
        return self.engine.input_processor

    def get_default_sampling_params(self) -> SamplingParams:
        """As `LLM.get_default_sampling_params`."""
        return self.engine.get_default_sampling_params()

    @property
    def errored(self) -> bool:
        """Whether the engine stopped."""
        return self._dead is not None

    @property
    def is_running(self) -> bool:
        """Whether the engine serves."""
        return self._dead is None

    async def check_health(self) -> None:
        """Return if the engine serves.

        Raises:
            EngineDeadError: why it stopped.
        """
        if self._dead is not None:
            raise EngineDeadError(str(self._dead)) from self._dead

    async def get_tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.engine.context.tokenizer

    @refusing()
    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int | None = None,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete a prompt; yields outputs as `SamplingParams.output_kind` says, by default after every token.

        Closing or cancelling the iteration aborts the request.

        Args:
            prompt: what `InputProcessor.process` takes.
            sampling_params: how to sample; None for `get_default_sampling_params()`.
            request_id: must not be in use; None for a generated one.
            priority: replaces the prompt's own; lower runs first, with `scheduling_policy="priority"`.
            lora_request: the prompt's LoRA adapter, with `enable_lora=True`.

        Raises:
            RequestError: the request is wrong.
            RequestFailedError: it failed while it ran.
            EngineDeadError: the engine stopped.
        """
        (keys,) = keys_of_each(lora_request, 1)
        prepare = partial(self.engine.input_processor.process, prompt, priority=priority, prompt_keys=keys)
        takes_long = _takes_long(prompt)
        async with contextlib.aclosing(self._stream(prepare, takes_long, sampling_params, request_id)) as outputs:
            async for output in outputs:
                yield output

    @refusing()
    async def chat(
        self,
        messages: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        lora_request: LoRARequest | None = None,
        **chat_args: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete a conversation; `chat_args` as for `LLM.chat`. Otherwise like `generate`."""
        (keys,) = keys_of_each(lora_request, 1)
        if keys is not None:
            chat_args["prompt_keys"] = with_keys(chat_args.get("prompt_keys"), keys)
        prepare = partial(self.engine.input_processor.process_chat, messages, **chat_args)
        # the caller's template may take seconds before it is stopped
        takes_long = bool(chat_args.get("chat_template")) or _conversation_takes_long(messages)
        async with contextlib.aclosing(self._stream(prepare, takes_long, sampling_params, request_id)) as outputs:
            async for output in outputs:
                yield output

    @refusing()
    async def encode(
        self,
        prompt: Any,
        pooling_params: PoolingParams,
        request_id: str | None = None,
        *,
        priority: int | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput], None]:
        """Pool a prompt, with a model that was loaded for it; yields one output. Otherwise like `generate`."""
        prepare = partial(self.engine.input_processor.process, prompt, priority=priority)
        takes_long = _takes_long(prompt)
        async with contextlib.aclosing(self._stream(prepare, takes_long, pooling_params, request_id)) as outputs:
            async for output in outputs:
                yield output

    beam_search: CallOfExtension[Awaitable[RequestOutput]] = CallOfExtension("decoding")
    """Documented at `corellm_decoding.beam_calls`."""

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Abort one or several requests; each yields a last output with the finish reason `"abort"`."""
        for wanted in [request_id] if isinstance(request_id, str) else request_id:
            name = self._names.get(wanted)
            stream = None if name is None else self._streams.get(name)
            if name is not None and stream is not None:
                stream.is_aborted = True  # it may not have reached the engine yet
                self._inbox.put(partial(self.engine.abort_request, name))

    async def in_engine(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call a function with the engine, and further arguments, in its thread between two steps."""
        check_process()
        future: Future[_Result] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return  # cancelled
            try:
                result = function(self.engine, *arguments)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        return await self._result_of(future, call)

    async def _result_of(self, future: Future[_Result], call: Callable[[], object]) -> _Result:
        """Have the engine's thread make a call, and return what it sets a future to; fails when the engine stops."""
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        self._inbox.put(call)
        if self._dead is not None:
            _fail(future, self._dead)
        return await asyncio.wrap_future(future)

    async def _stream(
        self,
        prepare: Callable[[], ProcessedPrompt],
        takes_long: bool | None,
        params: Any,
        request_id: str | None,
    ) -> AsyncGenerator[Any, None]:
        arrival_time = time.monotonic()
        params = self.engine.own_params(params)
        check_process()
        if self._loop is not (loop := asyncio.get_running_loop()):  # the one before may be closed
            self._loop = loop
            self._forget_lost()
        name = str(next(self._ids))
        stream = Stream(f"async-{name}" if request_id is None else request_id, params.output_kind)
        if self._names.setdefault(stream.request_id, name) != name:
            raise InvalidParameterError(f"request id {stream.request_id!r} is running already", param="request_id")
        self._streams[name] = stream
        finished, job = False, None
        try:
            if self._dead is not None:  # checked after registering: `_die` fails registered streams only
                raise EngineDeadError(str(self._dead)) from self._dead
            add = partial(self._add, name, params=params, arrival_time=arrival_time)
            if takes_long is not None and getattr(params, "constraint", None) is not None:
                prepare, takes_long = partial(self._checked, prepare, params), True
            prepare_and_add = partial(self._prepare, stream, prepare, add)
            if takes_long is None:
                prepare_and_add()
            else:
                job = self._submit(prepare_and_add, takes_long)
            while not finished:
                output = await stream.get()
                finished = output.finished
                if output.error is not None:
                    raise output.error
                yield output
        finally:
            self._forget(name)
            if not finished:
                if job is not None:
                    job.cancel()
                self._inbox.put(partial(self.engine.abort_request, name, silently=True))

    def _submit(self, job: Callable[[], None], takes_long: bool) -> Future[None]:
        try:
            return self._pools.submit(job, takes_long=takes_long)
        except RuntimeError as error:  # closed by another thread just now
            raise EngineDeadError("the engine was shut down") from error

    def _checked(self, prepare: Callable[[], ProcessedPrompt], params: SamplingParams) -> ProcessedPrompt:
        """Prepare a prompt after its constraint was checked, which may take seconds: not in the engine's thread."""
        self.engine.input_processor.check_params(params)
        return prepare()

    def _prepare(
        self, stream: Stream, prepare: Callable[[], ProcessedPrompt], add: Callable[[ProcessedPrompt], None]
    ) -> None:
        """Prepare a prompt in a pool's thread and send it to the engine. Errors reach the reader through the stream."""
        try:
            processed = prepare()
        except BaseException as error:
            stream.put(error)
        else:
            self._inbox.put(partial(add, processed))

    def _forget_lost(self) -> None:
        """Abort the requests whose reader's event loop was closed."""
        for name, stream in list(self._streams.items()):
            if stream.is_lost:
                self._forget(name)
                self._inbox.put(partial(self.engine.abort_request, name, silently=True))

    def _forget(self, name: str) -> None:
        stream = self._streams.pop(name, None)
        if stream is not None:
            self._names.pop(stream.request_id, None)

    # --- in the engine's thread -------------------------------------------------------------------------------------

    def _add(self, name: str, processed: ProcessedPrompt, params: Any, arrival_time: float) -> None:
        stream = self._streams.get(name)
        if stream is None:
            return  # cancelled meanwhile
        try:
            self.engine.add_prepared(name, processed, params, arrival_time=arrival_time)
        except CorellmError as error:
            stream.put(with_request_id(error, stream.request_id))
        except Exception as error:  # no request may end the engine
            logger.exception("adding a request failed")
            stream.put(RequestFailedError(f"adding the request failed with {type(error).__name__}"))
        else:
            if stream.is_aborted:
                self.engine.abort_request(name)

    def _deliver(self, outputs: Iterable[RequestOutput]) -> None:
        found = [(self._streams.get(output.request_id), output) for output in outputs]  # readers leave meanwhile
        read = [(stream, output) for stream, output in found if stream is not None]
        for stream, output in read:
            output.request_id = stream.request_id
        if not put_all(read):
            self._forget_lost()

    def _run(self) -> None:
        """The engine's thread: run calls from the inbox, step, deliver outputs; sleep when there is no request."""
        try:
            while not self._stopping:
                self._take_in(wait=not self.engine.has_unfinished_requests())
                if self.engine.has_unfinished_requests():
                    self._deliver(self.engine.step())
        except BaseException as error:
            logger.exception("the engine stopped")
            self._die(error if isinstance(error, EngineDeadError) else EngineDeadError(f"the engine stopped: {error}"))
        else:
            self._die(EngineDeadError("the engine was shut down"))

    def _take_in(self, *, wait: bool) -> None:
        self._busy_since = None if wait else time.monotonic()
        if wait:
            call = self._inbox.get()
            self._busy_since = time.monotonic()
            call()
        while not self._inbox.empty():
            self._inbox.get()()

    def _die(self, error: EngineDeadError) -> None:
        self._dead = error
        for stream in list(self._streams.values()):
            stream.put(error)
        for future in list(self._futures):
            _fail(future, error)
        end_trace(self.engine)  # in the thread that began it; last, because writing the file may fail

    def close(self) -> None:
        """Stop the engine after its current step, fail every unfinished request, free everything."""
        self._stop(None)
        self._pools.close()
        self.engine.shutdown()

    def _stop(self, timeout: float | None) -> bool:
        """Stop after the current step; returns whether it ended within `timeout` seconds."""
        self._stopping = True
        self._inbox.put(lambda: None)  # wakes the thread
        self._thread.join(timeout)
        return not self._thread.is_alive()


def _fail(future: Future[Any], error: Exception) -> None:
    """Fail a future, unless it is done."""
    with contextlib.suppress(InvalidStateError):
        future.set_exception(error)


def _takes_long(prompt: Any) -> bool | None:
    """Whether preparing a prompt takes long: it has media, or a long text. None for one that is prepared."""
    if isinstance(prompt, ProcessedPrompt):
        return None
    if isinstance(prompt, Mapping):
        return bool(prompt.get("multi_modal_data")) or any(_is_long(prompt.get(key)) for key in ("prompt", "text_pair"))
    return _is_long(prompt)


def _is_long(text: Any) -> bool:
    return isinstance(text, str) and len(text) > CHEAP_CHARACTERS


def _conversation_takes_long(messages: Any) -> bool:
    """Whether preparing a conversation takes long: it may have media (content in parts), or a long text."""
    if not isinstance(messages, Sequence):
        return False
    contents = [m.get("content") for m in messages if isinstance(m, Mapping)]
    return any(not isinstance(c, (str, type(None))) or _is_long(c) for c in contents)
