"""The engine: requests in, one step at a time, outputs out. `LLM` and `AsyncLLM` drive it.

Not thread-safe: one thread adds, steps and aborts. Prompts may be prepared (`input_processor`) in any thread. An
interrupt (Ctrl-C) may come anywhere: see `atomic`.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from corellm.config import EngineConfig
from corellm.engine import maintenance
from corellm.engine.atomic import atomic
from corellm.errors import ConfigError, CorellmError, EngineDeadError, InvalidParameterError, RequestError
from corellm.frontend.input_processor import ProcessedPrompt, with_request_id
from corellm.frontend.output_processor import OutputProcessor
from corellm.loading.deferred_imports import deferring
from corellm.loading.locating import LocatedModel, locate
from corellm.outputs import RequestOutput
from corellm.sampling_params import RequestOutputKind, SamplingParams
from corellm.scheduling.batch import ScheduledBatch, StepResult
from corellm.scheduling.request import Request, RequestStatus
from corellm.system.allocator import keep_freed_memory, return_freed_memory
from corellm.system.fork_safety import NotPicklable, check_process
from corellm.system.process import collector_paused, set_up_threads
from corellm.worker.trace import Trace

if TYPE_CHECKING:  # both import torch
    from corellm.worker.model_runner import ModelRunner
    from corellm.worker.step_in_flight import StepInFlight

logger = logging.getLogger(__name__)

MAX_FAILED_STEPS = 3
"""Number of consecutive failed steps after which the engine stops: no single request is the cause."""


class LLMEngine(NotPicklable):
    """Serves one model.

    Args:
        config: see `EngineConfig.from_kwargs`.
        check_encoders: embed the adapter's dummy items once at load, as a check.
        located: the checkpoint, where it is located already.

    Raises:
        ConfigError, CheckpointError, PluginError: the model cannot be served; says why and the way out.
    """

    prepares_at_once = False
    """Whether a prompt is prepared in less time than it takes to pass it to another thread."""
    reads_pairs = False
    """Whether two texts are joined as the tokenizer does it, where a call does not say how."""

    def __init__(
        self, config: EngineConfig, *, check_encoders: bool = True, located: LocatedModel | None = None
    ) -> None:
        self.config = config
        self.fetching_threads = config.fetching.fetching_threads
        """Further threads for the preparation of prompts: those that fetch wait."""
        with collector_paused():
            located = located or locate(config.model)  # refuses without waiting for torch
            self.use = located.use
            if (self.use.engine_class or LLMEngine) is not type(self):
                raise ConfigError(
                    f"{config.model.model} is a model for {', '.join(self.use.tasks) or 'its own tasks'}, and this "
                    "command generates text; use corellm embed, corellm serve, or in Python LLM.embed, LLM.classify, "
                    "...; or set runner='generate', convert='none'"
                )
            set_up_threads()
            keep_freed_memory()
            with deferring():  # transformers comes in here
                from corellm.loading.dummy_steps import is_healthy
                from corellm.loading.loading import load

            model = load(config, located, check_encoders=check_encoders)
        return_freed_memory()
        self.context = model.context
        self.input_processor = model.input_processor
        self.scheduler = model.scheduler
        self.max_model_len = model.max_model_len
        self.executor = model.executor
        self._runner: ModelRunner | None = model.runner
        self._is_healthy = is_healthy
        self.closing = model.closing
        """What is closed with the engine."""
        self.located, self.places, self.capture = located, model.places, model.capture
        """The checkpoint; where its weights are, and what captures graphs, for who reads them anew."""
        self.eos_token_ids = model.eos_token_ids
        """Tokens that end outputs, unless a request ignores them."""
        self._default_params = located.sampling
        self.output_processor = OutputProcessor(self.context.tokenizer)
        self.num_prompt_tokens = 0
        self.num_generated_tokens = 0
        self.trace: Trace | None = None
        """The trace that `maintenance` started; None if none is running."""
        self._ids = itertools.count()
        self._failed_steps = 0
        self.is_consistent = True
        """False during a call of an `atomic` method, and after an interrupted one until `restore` was called."""
        self._ahead: StepInFlight | None = None
        """The next step, if it is in flight already."""

    @property
    def runner(self) -> ModelRunner:
        """The worker.

        Raises:
            EngineDeadError: the engine was shut down.
        """
        if self._runner is None:
            raise EngineDeadError("the engine was shut down; make a new one")
        return self._runner

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that requests may have."""
        return self.use.tasks

    @staticmethod
    def from_kwargs(**kwargs: Any) -> LLMEngine:
        """Make the engine that a model needs from flat keyword arguments, `model=` at least."""
        config = EngineConfig.from_kwargs(**kwargs)
        located = locate(config.model)
        return (located.use.engine_class or LLMEngine)(config, located=located)

    def get_default_sampling_params(self) -> SamplingParams:
        """A copy of the parameters for requests without any: the checkpoint's, unless `generation_config="none"`."""
        return self._default_params.clone()

    def own_params(self, given: Any) -> Any:
        """A request's own copy of its sampling parameters; the defaults for None.

        Raises:
            InvalidParameterError: not a `SamplingParams`, or one with a wrong value.
        """
        return self.use.own_params(given, self._default_params, self.tasks)

    # --- requests ---------------------------------------------------------------------------------------------------

    def add_request(
        self,
        request_id: str,
        prompt: Any,
        params: SamplingParams | None = None,
        *,
        stream: bool = True,
        arrival_time: float | None = None,
    ) -> None:
        """Queue a request.

        Args:
            request_id: the caller's id for it; must not be in use.
            prompt: what `InputProcessor.process` takes or returns.
            params: how to sample; None for `get_default_sampling_params()`.
            stream: whether `step` gives outputs as `params.output_kind` says, or only the final one.
            arrival_time: of `time.monotonic()`; None for now.

        Raises:
            RequestError: the request is wrong; nothing was queued.
            RequestFailedError: its items could not be processed; nothing was queued.
        """
        params = self.own_params(params)
        self._check_new(request_id)
        try:
            processed = self.input_processor.process(prompt)
        except CorellmError as error:
            raise with_request_id(error, request_id) from error.__cause__
        self.add_prepared(request_id, processed, params, stream=stream, arrival_time=arrival_time)

    def add_prepared(
        self,
        request_id: str,
        prompt: ProcessedPrompt,
        params: Any,
        *,
        stream: bool = True,
        arrival_time: float | None = None,
    ) -> None:
        """Queue a request whose prompt is prepared, with parameters from `own_params`; otherwise like `add_request`."""
        self._check_new(request_id)
        prompt, params = self.use.ready(prompt, params, self.scheduler.limits.max_total_tokens, self.input_processor)
        queued_ts = time.monotonic()
        requests = self.requests_of(prompt, params, queued_ts if arrival_time is None else arrival_time)
        kind = params.output_kind if stream else RequestOutputKind.FINAL_ONLY
        self._enqueue(request_id, prompt, requests, kind, queued_ts)

    def _check_new(self, request_id: str) -> None:
        check_process()
        _ = self.runner  # raises if the engine was shut down
        if request_id in self.output_processor:
            raise InvalidParameterError(f"request id {request_id!r} is running already", param="request_id")

    def requests_of(self, prompt: ProcessedPrompt, params: Any, arrival_time: float) -> list[Request]:
        """Return the requests that a caller's becomes: one for each completion."""
        bad_words_ids = self.input_processor.bad_words_ids(params)
        part = self.input_processor.part_of(prompt)
        return [
            Request(
                request_id=str(next(self._ids)),
                prompt_token_ids=prompt.own_token_ids,
                sampling_params=params if params.n == 1 else params.child(index),
                features=prompt.features,
                eos_token_ids=self.eos_token_ids,
                priority=prompt.priority,
                cache_salt=prompt.cache_salt,
                arrival_time=arrival_time,
                bad_words_ids=bad_words_ids,
                part=part.fresh(),
            )
            for index in range(params.n)
        ]

    @atomic
    def _enqueue(
        self,
        request_id: str,
        processed: ProcessedPrompt,
        requests: list[Request],
        kind: RequestOutputKind,
        queued_ts: float,
    ) -> None:
        for request in requests:
            self.scheduler.add_request(request)
        self.output_processor.add(request_id, processed.text, requests, kind=kind, queued_ts=queued_ts)
        self.num_prompt_tokens += len(processed.token_ids)

    @atomic
    def abort_request(self, request_id: str, *, silently: bool = False) -> bool:
        """End a request now, in whatever state it is.

        Args:
            request_id: unknown ones are ignored.
            silently: produce no more output of it; otherwise the next `step` returns its last output.

        Returns:
            Whether it was running.
        """
        engine_ids = self.output_processor.engine_request_ids(request_id)
        finished = self.scheduler.finish_requests(engine_ids, RequestStatus.FINISHED_ABORTED)
        self.output_processor.finish_outside_step(finished)
        if silently:
            self.output_processor.discard(request_id)
            if finished and not self.scheduler.has_unfinished_requests():  # else the next step tells the worker
                self._drain()
        return bool(finished)

    @atomic
    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; returns False where requests still hold blocks, which is refused."""
        return self.scheduler.blocks.reset_prefix_cache()

    @atomic
    def reset_mm_cache(self) -> None:
        """Forget processed items, and encoder outputs that no request in flight needs. Cached prefixes stay."""
        self.input_processor.mm_processor.cache.clear()
        self.scheduler.encoder_cache.discard_unreferenced()
        if not self.scheduler.has_unfinished_requests():  # else the next step tells the worker
            self._drain()

    @property
    def is_sleeping(self) -> bool:
        """Whether no request may run, as memory is set aside. Steps still return outputs, as of aborted requests."""
        return self.scheduler.max_num_seqs == 0

    def require_awake(self) -> None:
        """Refuse what needs the model's memory.

        Raises:
            RequestError: the model sleeps.
        """
        if self.is_sleeping:
            raise RequestError("the model sleeps; call wake_up() first")

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has something to compute or outputs to return."""
        return self.output_processor.has_outputs if self.is_sleeping else len(self.output_processor) > 0

    # --- the loop ---------------------------------------------------------------------------------------------------

    @atomic
    def step(self) -> list[RequestOutput]:
        """Run one batch, picked by the scheduler, through the model.

        An interrupted step is undone: no unfinished request is lost, and the next step computes it again.

        Returns:
            Outputs of the requests that got a token or ended.

        Raises:
            EngineDeadError: it was shut down, or forward passes keep failing; the engine stays dead.
        """
        check_process()
        step = self._ahead or self.runner.launch(self.scheduler.schedule())
        self._ahead = self._launch_ahead(step)
        self.scheduler.look_ahead()  # while a GPU computes
        result = step.wait()
        self._count_failures(step.batch, result)
        changed = self.scheduler.update(step.batch, result)
        self._sample_ahead()
        stopped = self.output_processor.process(changed, step.batch, result)
        self.scheduler.finish_requests(stopped, RequestStatus.FINISHED_STOPPED)
        self.num_generated_tokens += sum(len(result.sampled.get(request.request_id, ())) for request in changed)
        if not self.scheduler.has_unfinished_requests():
            self._drain()
        return self.output_processor.take_outputs()

    def _launch_ahead(self, step: StepInFlight) -> StepInFlight | None:
        """Launch the step after `step` before the tokens of that one are known, if that is possible."""
        batch = self.scheduler.schedule_ahead() if step.in_flight else None
        return None if batch is None else _ahead_or_later(lambda: self.runner.launch_ahead(batch, step))

    def _sample_ahead(self) -> None:
        """Choose the tokens of the step launched ahead, if those of the step before had to be known for it."""
        step = self._ahead
        if step is not None:
            self._ahead = _ahead_or_later(lambda: self.runner.sample_ahead(step, self.scheduler.requests))

    def _count_failures(self, batch: ScheduledBatch, result: StepResult) -> None:
        """Count failed steps: those whose requests all failed, where the model does not run without them either.

        Raises:
            EngineDeadError: too many in a row.
        """
        if not batch.chunks:
            return
        if len(result.failed) < len(batch.chunks) or self._is_healthy(self.runner):
            self._failed_steps = 0
            return
        self._failed_steps += 1
        if self._failed_steps >= MAX_FAILED_STEPS:
            last = next(iter(result.failed.values()))
            raise EngineDeadError(f"{self._failed_steps} steps in a row failed, the last with: {last}") from last

    def _drain(self) -> None:
        """End the step in flight once no request is left, and have the worker release requests and items."""
        step, self._ahead = self._ahead, None
        if step is not None:
            self.scheduler.update(step.batch, step.wait())
        self.runner.execute(self.scheduler.schedule())

    def restore(self) -> None:
        """Repair the state after an interrupted call: unfinished requests are computed again from the cache on."""
        self._ahead = None
        self.scheduler.restart(self.output_processor.rewind())
        if self._runner is not None:
            self._runner.forget()
        self.is_consistent = True

    def shutdown(self) -> None:
        """Free the model and the caches. The engine cannot be used after."""
        from corellm.system.memory import release_memory

        try:
            maintenance.end_trace(self)
        finally:
            self.closing.close()
            self._runner = self._ahead = self.capture = None
            self.places = {}
            release_memory()


def _ahead_or_later(run: Callable[[], StepInFlight]) -> StepInFlight | None:
    """Return a step that runs ahead; None if it fails: then it is scheduled and computed again."""
    try:
        return run()
    except Exception:
        logger.warning("a step could not run ahead; it runs after the one before it", exc_info=True)
        return None
