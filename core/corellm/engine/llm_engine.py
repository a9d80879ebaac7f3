"""The engine: requests in, one step at a time, outputs out. What the offline API and the server both drive.

Not thread-safe: one thread adds, steps and aborts (`AsyncLLM` does that for asyncio). Preparing prompts
(`input_processor`) may happen in any thread.
"""

from __future__ import annotations

import itertools
import logging
import time
from typing import Any

from corellm.config import EngineConfig
from corellm.engine.input_processor import ProcessedPrompt, with_request_id
from corellm.engine.output_processor import OutputProcessor
from corellm.engine.request import Request, RequestStatus
from corellm.errors import CorellmError, EngineDeadError, InvalidParameterError
from corellm.outputs import RequestOutput
from corellm.sampling_params import SamplingParams
from corellm.worker.batch import ScheduledBatch, StepResult
from corellm.worker.process import collector_paused, set_up_threads

logger = logging.getLogger(__name__)

MAX_FAILED_STEPS = 3
"""After so many failed steps in a row the engine gives up: the fault is not a request's."""


class LLMEngine:
    """Serves one model.

    Args:
        config: see `EngineConfig.from_kwargs`.
        check_encoders: as of `loading.load`.

    Raises:
        ConfigError, CheckpointError, PluginError: the model cannot be served; says why and the way out.
    """

    def __init__(self, config: EngineConfig, *, check_encoders: bool = True) -> None:
        self.config = config
        with collector_paused():
            set_up_threads()
            from corellm.engine.loading import load  # torch comes in here, after the threads are set up

            model = load(config, check_encoders=check_encoders)
        self.context = model.context
        self.input_processor = model.input_processor
        self.scheduler = model.scheduler
        self.max_model_len = model.max_model_len
        self.executor = model.executor
        self.runner: Any = model.runner
        """The worker; None once the engine was shut down."""
        self._templates = model.templates
        self._eos_token_ids = model.eos_token_ids
        self.output_processor = OutputProcessor(self.context.tokenizer)
        self.num_prompt_tokens = 0
        self.num_generated_tokens = 0
        self._ids = itertools.count()
        self._failed_steps = 0
        self._ahead: tuple[ScheduledBatch, Any] | None = None
        """The step after the last one, if it was handed to the device already."""

    @classmethod
    def from_kwargs(cls, **kwargs: Any) -> LLMEngine:
        """Make an engine from flat keyword arguments, `model=` at least."""
        return cls(EngineConfig.from_kwargs(**kwargs))

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
            request_id: the caller's name for it; must not be running already.
            prompt: what `InputProcessor.process` takes, or what it gave.
            params: how to sample; None for the defaults.
            stream: whether `step` gives an output for every new token, or only the final one.
            arrival_time: of `time.monotonic()`; None for now.

        Raises:
            RequestError: the request is wrong; nothing was queued.
            RequestFailedError: its items could not be processed; nothing was queued.
        """
        if self.runner is None:
            raise EngineDeadError("the engine was shut down; make a new one")
        if request_id in self.output_processor:
            raise InvalidParameterError(f"request id {request_id!r} is running already", param="request_id")
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise InvalidParameterError(f"params must be a SamplingParams, got {type(params).__name__}", param="params")
        self.input_processor.check_params(params)
        try:
            processed = prompt if isinstance(prompt, ProcessedPrompt) else self.input_processor.process(prompt)
        except CorellmError as error:
            raise with_request_id(error, request_id) from error.__cause__
        bad_words_ids = self.input_processor.bad_words_ids(params)
        arrival = time.monotonic() if arrival_time is None else arrival_time
        requests = [
            Request(
                request_id=str(next(self._ids)),
                prompt_token_ids=processed.token_ids,
                sampling_params=params if params.n == 1 else params.child(index),
                features=processed.features,
                eos_token_ids=self._eos_token_ids,
                priority=processed.priority,
                cache_salt=processed.cache_salt,
                arrival_time=arrival,
                bad_words_ids=bad_words_ids,
            )
            for index in range(params.n)
        ]
        self.output_processor.add(request_id, processed.text, requests, stream=stream)
        for request in requests:
            self.scheduler.add_request(request)
        self.output_processor.finish_outside_step(r for r in requests if r.status.is_finished)
        self.num_prompt_tokens += len(processed.token_ids)

    def abort_request(self, request_id: str, *, silently: bool = False) -> bool:
        """End a request now, in whatever state it is.

        Args:
            request_id: unknown ones are passed over.
            silently: hand out nothing more of it; otherwise its last output comes with the next `step`.

        Returns:
            Whether it was running.
        """
        engine_ids = self.output_processor.engine_request_ids(request_id)
        finished = self.scheduler.finish_requests(engine_ids, RequestStatus.FINISHED_ABORTED)
        self.output_processor.finish_outside_step(finished)
        if silently:
            self.output_processor.discard(request_id)
        return bool(finished)

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has something to do or to hand out."""
        return self.output_processor.has_pending or self.scheduler.has_unfinished_requests()

    # --- the loop ---------------------------------------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """Run everything the scheduler picks through the model once.

        Returns:
            Outputs of the requests that got a token or ended.

        Raises:
            EngineDeadError: it was shut down, or forward passes keep failing; the engine serves nobody any more.
        """
        (batch, running), self._ahead = self._ahead or self._launch(), None
        ahead = self._launch_ahead(running)
        result = self._wait(batch, running)
        changed = self.scheduler.update(batch, result)
        self._ahead = ahead  # not before the update: if that is interrupted, neither step has happened
        self.num_generated_tokens += sum(request.request_id in result.sampled for request in changed)
        outputs, stopped = self.output_processor.process(changed, batch, result)
        self.scheduler.finish_requests(stopped, RequestStatus.FINISHED_STOPPED)
        if not self.scheduler.has_unfinished_requests():
            self._settle()
        return outputs

    def _launch(self) -> tuple[ScheduledBatch, Any]:
        batch = self.scheduler.schedule()
        return batch, self.runner.launch(batch)

    def _launch_ahead(self, running: Any) -> tuple[ScheduledBatch, Any] | None:
        """Hand the next step to the device before the last one's tokens are here, if that is possible."""
        if not running.is_recorded:
            return None
        batch = self.scheduler.schedule_ahead()
        if batch is None:
            return None
        try:
            return batch, self.runner.launch_ahead(batch, running)
        except Exception:
            logger.warning("a step could not be launched ahead; it is run after the one before", exc_info=True)
            return None

    def _wait(self, batch: ScheduledBatch, running: Any) -> StepResult:
        """What came of a step. Requests may fail; only if all do, and the model does not run without, that counts."""
        result: StepResult = running.wait()
        if not batch.chunks:
            return result
        if len(result.failed) < len(batch.chunks) or self.runner.is_healthy():
            self._failed_steps = 0
            return result
        self._failed_steps += 1
        if self._failed_steps >= MAX_FAILED_STEPS:
            last = next(iter(result.failed.values()))
            raise EngineDeadError(f"{self._failed_steps} steps in a row failed, the last with: {last}") from last
        return result

    def _settle(self) -> None:
        """Nobody is left: end the step that was begun for nothing, and have the worker let go of the last ones."""
        if self._ahead is not None:
            batch, running = self._ahead
            self._ahead = None
            self.scheduler.update(batch, running.wait())
        self.runner.execute(self.scheduler.schedule())

    def shutdown(self) -> None:
        """Free the model and the caches. The engine cannot be used after."""
        from corellm.worker.memory import release_memory

        self.executor.shutdown(wait=False, cancel_futures=True)
        self._templates.close()
        self.runner = self._ahead = None
        release_memory()
