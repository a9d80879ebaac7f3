"""The offline API: a model, a list of prompts, a list of answers.

`LLM` drives an engine in the calling thread; prompts are prepared ahead in a thread pool while the engine runs.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

from corellm.engine.chat_processor import AllowedSpecial
from corellm.engine.input_processor import ProcessedPrompt
from corellm.engine.llm_engine import LLMEngine
from corellm.errors import CorellmError, EngineDeadError, InvalidParameterError
from corellm.outputs import CompletionOutput, RequestOutput
from corellm.sampling_params import SamplingParams
from corellm.worker.process import usable_cpus

OnError = Literal["raise", "return"]


class LLM:
    r"""A loaded model that answers lists of prompts. A context manager: leaving it frees everything.

    Args:
        model: a local directory in the Hugging Face layout, a hub name, or a checkpoint a plugin ships (`"demo"`).
        dtype: `"auto"` (the checkpoint's), `"float32"`, `"bfloat16"` or `"float16"`.
        max_model_len: longest sequence, prompt and output together.
        adapter: distribution whose adapter to use, where several claim the architecture.
        **engine_args: every other field of `corellm.config`: `max_num_seqs`, `max_num_batched_tokens`, `block_size`,
            `kv_cache_memory`, `num_kv_blocks`, `preemption_mode`, `swap_space`, `enable_prefix_caching`,
            `enable_chunked_prefill`, `limit_mm_per_prompt`, `mm_processor_kwargs`, `mm_processor_cache_gb`, `seed`,
            `trust_remote_code`, `revision`, ...

    Raises:
        ConfigError, CheckpointError, PluginError: the model cannot be served; says why and the way out.

    Example:
        >>> with LLM("demo") as llm:
        ...     prompt = {"prompt": "USER: <image>\nWhat shape? ASSISTANT:", "multi_modal_data": {"image": "a.png"}}
        ...     print(llm.generate(prompt, SamplingParams(temperature=0))[0].outputs[0].text)
    """

    def __init__(
        self,
        model: str,
        *,
        dtype: str = "auto",
        max_model_len: int | None = None,
        adapter: str | None = None,
        **engine_args: Any,
    ) -> None:
        self.engine = LLMEngine.from_kwargs(
            model=str(model), dtype=dtype, max_model_len=max_model_len, adapter=adapter, **engine_args
        )
        self._pool = ThreadPoolExecutor(max_workers=usable_cpus(), thread_name_prefix="corellm-prompts")
        self._ids = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the model, the caches and the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.engine.shutdown()

    def get_tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.engine.context.tokenizer

    def generate(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        on_error: OnError = "raise",
    ) -> list[RequestOutput]:
        """Complete prompts.

        Args:
            prompts: one or a list of: text, `{"prompt_token_ids": [...]}`, or
                `{"prompt": text, "multi_modal_data": {"image": image or [images]}, "mm_processor_kwargs": {...},
                "multi_modal_uuids": {...}, "cache_salt": ..., "priority": ...}`.
            sampling_params: one for all, or one each.
            use_tqdm: show a progress bar with tokens per second when it takes more than a second.
            on_error: what happens when a prompt is wrong or fails. The others are always finished; then `"raise"`
                raises the first error (its `outputs` attribute has all outputs), and `"return"` leaves it in the
                `error` of that prompt's output.

        Returns:
            One output per prompt, in their order.

        Raises:
            CorellmError: the first failed prompt's error.
        """
        many = isinstance(prompts, Iterable) and not isinstance(prompts, (str, Mapping))
        listed = list(prompts) if many else [prompts]
        process = self.engine.input_processor.process
        return self._run([partial(process, prompt) for prompt in listed], sampling_params, use_tqdm, on_error)

    def chat(
        self,
        messages: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
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
    ) -> list[RequestOutput]:
        """Answer conversations.

        Args:
            messages: one conversation or a list of them; a conversation is a list of `{"role", "content"}`, content
                text or parts: `{"type": "text", "text"}`, `{"type": "image", "image": path, bytes, PIL or array}`,
                `{"type": "image_url", "image_url": {"url": path, file: or data: URL}}`.
            sampling_params, use_tqdm, on_error: as for `generate`.
            chat_template: Jinja template to use instead of the checkpoint's.
            add_generation_prompt: end with the start of the assistant's turn: the default, unless
                `continue_final_message`.
            continue_final_message: end within the last message instead, for the model to go on with it.
            tools: JSON schemas, or Python functions with type hints and a docstring, for the template.
            chat_template_kwargs: further variables for the template, such as `enable_thinking`.
            mm_processor_kwargs: for all items.
            cache_salt, priority: of each conversation, as of a prompt.
            allowed_special: special tokens that may be written in a message's text; `"all"` for all but those that
                stand for items.

        Returns:
            One output per conversation.
        """
        one = isinstance(messages, Sequence) and bool(messages) and isinstance(messages[0], Mapping)
        conversations = [messages] if one else list(messages)

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
        )
        return self._run([partial(process, c) for c in conversations], sampling_params, use_tqdm, on_error)

    # --- the loop ---------------------------------------------------------------------------------------------------

    def _run(
        self,
        prepare: Sequence[Callable[[], ProcessedPrompt]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
        on_error: OnError,
    ) -> list[RequestOutput]:
        if self.engine.runner is None:
            raise EngineDeadError("this LLM is closed; ask within its `with` block, or make a new one")
        if on_error not in ("raise", "return"):
            raise InvalidParameterError(f"on_error must be 'raise' or 'return', got {on_error!r}", param="on_error")
        params = _one_each(sampling_params, len(prepare))
        ids = [f"offline-{next(self._ids)}" for _ in prepare]
        outputs: dict[str, RequestOutput] = {}
        try:
            with _Progress(self.engine, len(prepare), use_tqdm) as progress:
                for output in self._drive(ids, prepare, params):
                    outputs[output.request_id] = output
                    progress.update()
        finally:
            for request_id in set(ids) - set(outputs):  # an interrupt or a dead engine: leave nothing behind
                self.engine.abort_request(request_id, silently=True)
        ordered = [outputs[request_id] for request_id in ids]
        failed = [(i, output.error) for i, output in enumerate(ordered) if output.error is not None]
        if failed and on_error == "raise":
            index, error = failed[0]
            if len(prepare) > 1:
                error.add_note(
                    f"(prompt {index} of {len(prepare)}; {len(failed)} failed, the others' outputs are in .outputs)"
                )
            error.outputs = ordered  # type: ignore[attr-defined]
            raise error
        return ordered

    def _drive(
        self, ids: Sequence[str], prepare: Sequence[Callable[[], ProcessedPrompt]], params: Sequence[SamplingParams]
    ) -> Iterable[RequestOutput]:
        """Feed prompts to the engine as they are ready, in order, a bounded number ahead, and step it."""
        ahead = 2 * usable_cpus() + self.engine.scheduler.max_num_seqs
        todo = deque(zip(ids, prepare, params, strict=True))
        ready: deque[tuple[str, Future[ProcessedPrompt], SamplingParams]] = deque()
        waiting = 0
        while todo or ready or self.engine.has_unfinished_requests():
            while todo and len(ready) + waiting < ahead:
                request_id, call, wanted = todo.popleft()
                ready.append((request_id, self._pool.submit(call), wanted))
            while ready and (ready[0][1].done() or not self.engine.has_unfinished_requests()):
                request_id, future, wanted = ready.popleft()
                try:
                    self.engine.add_request(request_id, future.result(), wanted, stream=False)
                except EngineDeadError:
                    raise
                except CorellmError as error:
                    yield _failed_output(request_id, error, wanted.n)
            yield from self.engine.step()
            waiting = self.engine.scheduler.num_waiting


def _one_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if not isinstance(params, Sequence) or not all(isinstance(p, SamplingParams) for p in params):
        raise InvalidParameterError(
            f"sampling_params must be a SamplingParams or a list of them, got {params!r:.100}",
            param="sampling_params",
        )
    if len(params) != count:
        raise InvalidParameterError(
            f"{len(params)} sampling_params for {count} prompts; give one for all, or one each", param="sampling_params"
        )
    return list(params)


def _failed_output(request_id: str, error: CorellmError, n: int) -> RequestOutput:
    """What a prompt that never reached the engine gives back."""
    outputs = [CompletionOutput(index=i, finish_reason="error") for i in range(n)]
    return RequestOutput(request_id, None, [], outputs, finished=True, error=error)


class _Progress:
    """A progress bar over requests with tokens per second; silent when work is done within a second."""

    def __init__(self, engine: LLMEngine, total: int, enabled: bool) -> None:
        from tqdm.auto import tqdm

        self._engine = engine
        self._start = (engine.num_prompt_tokens, engine.num_generated_tokens)
        self._bar = tqdm(
            total=total, disable=not enabled, delay=1.0, desc="Answering", unit="prompt", dynamic_ncols=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def update(self) -> None:
        elapsed = max(self._bar.format_dict["elapsed"], 1e-6)
        rates = (
            (now - then) / elapsed
            for now, then in zip(
                (self._engine.num_prompt_tokens, self._engine.num_generated_tokens), self._start, strict=True
            )
        )
        prompt_rate, output_rate = rates
        self._bar.set_postfix_str(f"prompt {prompt_rate:.0f} tok/s, output {output_rate:.0f} tok/s", refresh=False)
        self._bar.update()
