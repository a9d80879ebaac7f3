"""The offline API: a model, a list of prompts, a list of outputs.

`LLM` drives an engine in the calling thread; prompts are prepared ahead in a thread pool while the engine runs.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from corellm.engine.at_exit import stop_at_exit
from corellm.engine.llm_engine import LLMEngine
from corellm.engine.maintenance import Maintenance
from corellm.errors import (
    ConfigError,
    CorellmError,
    EngineDeadError,
    InvalidParameterError,
    RequestError,
)
from corellm.frontend.chat_processor import AllowedSpecial
from corellm.frontend.input_processor import ProcessedPrompt
from corellm.frontend.preparation_pools import CallingThread
from corellm.known_fields import refusing
from corellm.outputs import RequestOutput
from corellm.plugin.calls import CallOfExtension
from corellm.progress import Progress
from corellm.prompts import keys_of_each, priority_of_each, split_prompts, with_keys
from corellm.sampling_params import SamplingParams, params_of_each
from corellm.system.fork_safety import NotPicklable, check_process
from corellm.system.process import usable_cpus

if TYPE_CHECKING:
    import torch

    from corellm_lora.lora_request import LoRARequest
    from corellm_pooling.results import (
        ClassificationOutput,
        EmbeddingOutput,
        PoolingOutput,
        PoolingRequestOutput,
        ScoringOutput,
    )
    from corellm_speech.segments import Transcript

OnError = Literal["raise", "return"]
_Result = TypeVar("_Result")

_MOST_PREPARING = 4
"""Threads that prepare prompts, at most: they share the interpreter with the engine's thread, which more of them only
hold up."""


class LLM(Maintenance, NotPicklable):
    r"""A loaded model that completes lists of prompts. A context manager: leaving it frees everything.

    Args:
        model: a local directory in the Hugging Face layout, a hub name, or a checkpoint a plugin ships (`"demo"`).
        dtype: `"auto"` (the checkpoint's), `"float32"`, `"bfloat16"` or `"float16"`, or torch's of that name.
        max_model_len: longest sequence, prompt and output together.
        adapter: distribution whose adapter to use, where several claim the architecture.
        **engine_args: every other field of `corellm.config`: `max_num_seqs`, `max_num_batched_tokens`, `block_size`,
            `kv_cache_memory`, `num_kv_blocks`, `preemption_mode`, `swap_space`, `enable_prefix_caching`,
            `enable_chunked_prefill`, `limit_mm_per_prompt`, `mm_processor_kwargs`, `mm_processor_cache_gb`, `seed`,
            `trust_remote_code`, `revision`, `tokenizer`, `hf_overrides`, `load_format`, `generation_config`,
            `allowed_media_domains`, ...

    Raises:
        ConfigError, CheckpointError, PluginError: the model cannot be served; says why and the way out.

    Example:
        >>> with LLM("demo") as llm:
        ...     prompt = {"prompt": "USER: <image>\nWhat shape? ASSISTANT:", "multi_modal_data": {"image": "a.png"}}
        ...     print(llm.generate(prompt, SamplingParams(temperature=0))[0].outputs[0].text)
    """

    @refusing(ConfigError)
    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        dtype: str | torch.dtype = "auto",
        max_model_len: int | None = None,
        adapter: str | None = None,
        **engine_args: Any,
    ) -> None:
        self.engine = LLMEngine.from_kwargs(
            model=model, dtype=dtype, max_model_len=max_model_len, adapter=adapter, **engine_args
        )
        self._num_threads = min(usable_cpus(), _MOST_PREPARING) + self.engine.fetching_threads
        self._pool: Executor = (
            CallingThread()
            if self.engine.prepares_at_once
            else ThreadPoolExecutor(self._num_threads, thread_name_prefix="corellm-prompts")
        )
        self._ids = itertools.count()
        self._turn = threading.Lock()
        """Held by the call that drives the engine."""
        self._caller = 0
        """Id of the thread that holds `_turn`; 0 between calls."""
        self._unfinished: list[str] = []
        """Requests of the current call, or of one whose cleanup was interrupted."""
        self._closed = False
        stop_at_exit(self._stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the model, the caches and the threads.

        Waits for a call in another thread, which ends after its current step with an `EngineDeadError`.
        """
        self._closed = True
        if not self._is_within_call():  # a signal handler: the interrupted call frees everything when it ends
            with self._turn:
                self._free()

    def _stop(self, timeout: float) -> bool:
        """Stop a call in another thread after its current step; returns whether it ended within `timeout` seconds."""
        self._closed = True
        if not self._is_within_call():
            if not self._turn.acquire(timeout=timeout):
                return False
            self._turn.release()
        return True

    def _free(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.engine.shutdown()

    def in_engine(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call a function with the engine, and further arguments: it has the engine to itself, and other threads wait.

        `with` takes the lock, because an interrupt cannot come between taking and guarding it there.

        Raises:
            RequestError: the same thread is within another call.
            EngineDeadError: this LLM is closed.
        """
        if self._is_within_call():
            raise RequestError(
                "this LLM is in the middle of a call of the same thread (this one comes from a signal handler or a "
                "callback?); call it after that has returned"
            )
        with self._turn:
            self._caller = threading.get_ident()
            try:
                self._check_open()
                return function(self.engine, *arguments)
            finally:
                self._caller = 0  # or this thread would seem to be within the call of another one that takes the lock
                if self._closed:
                    self._free()

    def _is_within_call(self) -> bool:
        return self._turn.locked() and self._caller == threading.get_ident()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineDeadError("this LLM is closed; use it within its `with` block, or make a new one")

    def get_tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.engine.context.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """A copy of the parameters that apply where `sampling_params` is None.

        They come from `generation_config.json`, unless the model was loaded with `generation_config="none"`.
        """
        return self.engine.get_default_sampling_params()

    @refusing()
    def generate(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        on_error: OnError = "raise",
        priority: Sequence[int] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts.

        Args:
            prompts: one or a list of: text, token ids (a list, an array or a tensor), or
                `{"prompt": text, "multi_modal_data": {"image": image or [images]}, "mm_processor_kwargs": {...},
                "multi_modal_uuids": {...}, "cache_salt": ..., "priority": ...}`, with `"prompt_token_ids": [...]` in
                place of `"prompt"` if wanted. A list of integers is one prompt.
            sampling_params: one for all, or one each; None for `get_default_sampling_params()`.
            use_tqdm: show a progress bar with tokens per second when it takes more than a second; or a function that
                makes the bar, called with `total=` and `desc=` like `tqdm`.
            on_error: what happens when a prompt is wrong or fails. The others are always finished; then `"raise"`
                raises the first error (its `outputs` attribute has all outputs), and `"return"` leaves it in the
                `error` of that prompt's output.
            priority: one for each prompt, replacing the prompts' own; lower runs first, with
                `LLM(..., scheduling_policy="priority")`.
            lora_request: the LoRA adapter of all prompts, or a list of one or None for each; with
                `LLM(..., enable_lora=True)`. In a prompt's dictionary it is a key of this name.

        Returns:
            One output per prompt, in their order.

        Raises:
            CorellmError: the first failed prompt's error.
        """
        listed = split_prompts(prompts)
        priorities: Iterable[int | None] = (
            itertools.repeat(None) if priority is None else priority_of_each(priority, len(listed))
        )
        keys: Iterable[Any] = itertools.repeat(None)
        if lora_request is not None:
            keys = keys_of_each(lora_request, len(listed))
        process = self.engine.input_processor.process
        prepare = [
            partial(process, prompt, priority=p, prompt_keys=k)
            for prompt, p, k in zip(listed, priorities, keys, strict=False)
        ]
        return self.run_prepared(prepare, self._params_of_each(sampling_params, len(prepare)), use_tqdm, on_error)

    @refusing()
    def chat(
        self,
        messages: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        on_error: OnError = "raise",
        chat_template: str | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: Sequence[Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        allowed_special: AllowedSpecial = (),
        max_window_size: int | None = None,
        prompt_keys: Mapping[str, Any] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        """Complete conversations.

        Args:
            messages: one conversation or a list of them; a conversation is a list of `{"role", "content"}`, content
                text or parts: `{"type": "text", "text"}`, `{"type": "image", "image": path, bytes, PIL or array}`,
                `{"type": "image_url", "image_url": {"url": path, file: or data: URL, or one of a host of
                allowed_media_domains}}`.
            sampling_params, use_tqdm, on_error: as for `generate`.
            chat_template: Jinja template to use instead of the checkpoint's.
            add_generation_prompt: end with the start of the assistant's turn: the default, unless
                `continue_final_message`.
            continue_final_message: end within the last message instead, for the model to go on with it.
            tools: JSON schemas, or Python functions with type hints and a docstring, for the template.
            chat_template_kwargs: further variables for the template, such as `enable_thinking`.
            mm_processor_kwargs: for all items.
            cache_salt, priority: for every conversation; see `generate`.
            allowed_special: special tokens that stay tokens in a message's text; `"all"` for all except placeholders
                of items.
            max_window_size: most tokens of a prompt, placeholders expanded. Of a longer conversation the oldest turns
                are left out, whole and with their items; the system message and the last user turn are kept.
            prompt_keys: for every conversation, the keys that extensions read in prompts, with their values.
            lora_request: see `generate`.

        Returns:
            One output per conversation.
        """
        is_list = isinstance(messages, Iterable) and not isinstance(messages, (str, bytes, Mapping))
        one = isinstance(messages, Sequence) and bool(messages) and isinstance(messages[0], Mapping)
        conversations = list(messages) if is_list and not one else [messages]

        process = partial(
            self.engine.input_processor.process_chat,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
            mm_processor_kwargs=mm_processor_kwargs,
            cache_salt=cache_salt,
            priority=priority,
            allowed_special=allowed_special,
            max_window_size=max_window_size,
        )
        prepare = [
            partial(process, conversation, prompt_keys=with_keys(prompt_keys, keys))
            for conversation, keys in zip(conversations, keys_of_each(lora_request, len(conversations)), strict=True)
        ]
        return self.run_prepared(prepare, self._params_of_each(sampling_params, len(prepare)), use_tqdm, on_error)

    def _params_of_each(
        self, given: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> list[SamplingParams]:
        """The sampling parameters of each prompt.

        Raises:
            InvalidParameterError: they are wrong, or the model does not generate text.
        """
        self.engine.use.check_task("generate")
        return params_of_each(self.get_default_sampling_params() if given is None else given, count)

    # --- calls of extensions ----------------------------------------------------------------------------------------

    # documented at `corellm_pooling.calls`, `corellm_decoding.beam_calls`, `corellm_speech.calls`
    encode: CallOfExtension[list[PoolingRequestOutput[PoolingOutput]]] = CallOfExtension("pooling")
    embed: CallOfExtension[list[PoolingRequestOutput[EmbeddingOutput]]] = CallOfExtension("pooling")
    classify: CallOfExtension[list[PoolingRequestOutput[ClassificationOutput]]] = CallOfExtension("pooling")
    reward: CallOfExtension[list[PoolingRequestOutput[PoolingOutput]]] = CallOfExtension("pooling")
    score: CallOfExtension[list[PoolingRequestOutput[ScoringOutput]]] = CallOfExtension("pooling")
    beam_search: CallOfExtension[list[RequestOutput]] = CallOfExtension("decoding")
    transcribe: CallOfExtension[list[Transcript]] = CallOfExtension("speech")

    # --- the loop ---------------------------------------------------------------------------------------------------

    def run_prepared(
        self,
        prepare: Sequence[Callable[[], ProcessedPrompt]],
        params: Sequence[Any],
        use_tqdm: bool | Callable[..., Any],
        on_error: OnError,
    ) -> list[Any]:
        """Run prompts that are prepared by functions, with the parameters of each; returns their outputs."""
        check_process()
        if on_error not in ("raise", "return"):
            raise InvalidParameterError(f"on_error must be 'raise' or 'return', got {on_error!r}", param="on_error")
        if not isinstance(use_tqdm, bool) and not callable(use_tqdm):
            raise InvalidParameterError(
                f"use_tqdm must be True, False or a function that makes a progress bar, got {use_tqdm!r:.100}",
                param="use_tqdm",
            )
        return self.run_ended(self.in_engine(lambda _: self._complete(prepare, params, use_tqdm)), on_error)

    def run_ended(self, ordered: list[Any], on_error: OnError) -> list[Any]:
        """Return the outputs of a call; or raise the first one's error, as `on_error` says."""
        failed = [(i, output.error) for i, output in enumerate(ordered) if output.error is not None]
        if failed and on_error == "raise":
            index, error = failed[0]
            if len(ordered) > 1:
                error.add_note(
                    f"(prompt {index} of {len(ordered)}; {len(failed)} failed, the others' outputs are in .outputs)"
                )
            error.outputs = ordered
            raise error
        return ordered

    def _complete(
        self,
        prepare: Sequence[Callable[[], ProcessedPrompt]],
        params: Sequence[SamplingParams],
        use_tqdm: bool | Callable[..., Any],
    ) -> list[RequestOutput]:
        """Complete prompts while holding `_turn`. An interrupt aborts all of them."""
        self.engine.require_awake()
        ids = [f"offline-{next(self._ids)}" for _ in prepare]
        outputs: dict[str, RequestOutput] = {}
        try:
            self._abort_unfinished()  # of a call whose cleanup was interrupted
            self._unfinished += ids
            with Progress(self.engine, len(prepare), use_tqdm) as progress:
                for output in self._drive(ids, prepare, params):
                    outputs[output.request_id] = output
                    progress.update()
            self._unfinished.clear()
            return [outputs[request_id] for request_id in ids]
        finally:
            self._abort_unfinished()

    def _abort_unfinished(self) -> None:
        while self._unfinished:
            self.engine.abort_request(self._unfinished[-1], silently=True)
            self._unfinished.pop()

    def _drive(
        self, ids: Sequence[str], prepare: Sequence[Callable[[], ProcessedPrompt]], params: Sequence[SamplingParams]
    ) -> Iterable[RequestOutput]:
        """Feed prompts to the engine as they are ready, in order, a bounded number ahead, and step it."""
        ahead = 2 * self._num_threads + self.engine.scheduler.max_num_seqs
        todo = deque(zip(ids, prepare, params, strict=True))
        ready: deque[tuple[str, Future[ProcessedPrompt], SamplingParams]] = deque()
        waiting = 0
        try:
            while todo or ready or self.engine.has_unfinished_requests():
                self._check_open()
                while todo and len(ready) + waiting < ahead:
                    request_id, call, wanted = todo.popleft()
                    ready.append((request_id, self._pool.submit(call), wanted))
                while ready and (ready[0][1].done() or not self.engine.has_unfinished_requests()):
                    request_id, future, wanted = ready.popleft()
                    try:
                        self.engine.add_prepared(request_id, future.result(), wanted, stream=False)
                    except EngineDeadError:
                        raise
                    except CorellmError as error:
                        yield self.engine.output_processor.refused(request_id, error, wanted)
                yield from self.engine.step()
                waiting = self.engine.scheduler.num_waiting
        finally:
            for _, future, _ in ready:  # not empty after an interrupt
                future.cancel()
