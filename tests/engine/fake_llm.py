"""An `LLM` on the fake worker: the real loop, scheduler, output processor and tokenizer, and no model.

Prompts are `ProcessedPrompt`s. A step takes microseconds, so a test can run thousands of loads.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from corellm import LLM
from corellm.loading.model_use import ModelUse
from corellm.sampling_params import SamplingParams
from corellm.scheduling.batch import ScheduledBatch, StepResult, TokenLogprobs
from corellm.scheduling.request_part import PLAIN
from tests.scheduling.fake_worker import EOS, VOCABULARY, FakeWorker
from tests.scheduling.simulation import Setup, Simulation


@dataclass
class FakeStep:
    """A step that was launched."""

    batch: ScheduledBatch
    result: StepResult
    in_flight: bool

    def wait(self) -> StepResult:
        return self.result


class FakeRunner:
    """The runner's methods, on the fake worker."""

    def __init__(self, worker: FakeWorker, *, runs_ahead: bool) -> None:
        self.worker = worker
        self.runs_ahead = runs_ahead
        self.num_ahead = 0

    def launch(self, batch: ScheduledBatch) -> FakeStep:
        return self._started(batch, self.worker.execute(batch))

    def launch_ahead(self, batch: ScheduledBatch, before: FakeStep) -> FakeStep:
        self.num_ahead += 1
        return self._started(batch, self.worker.execute_ahead(batch, before.result))

    def sample_ahead(self, step: FakeStep, running: Container[str]) -> FakeStep:
        return step

    def execute(self, batch: ScheduledBatch) -> StepResult:
        return self.launch(batch).wait()

    def forget(self) -> None:
        self.worker.forget()

    def _started(self, batch: ScheduledBatch, result: StepResult) -> FakeStep:
        for name, tokens in result.sampled.items():
            if self.worker.sequences[name].sampling_params.logprobs is not None:
                result.logprobs[name] = [TokenLogprobs([token], [-0.1 * (token + 1)], [1]) for token in tokens]
        return FakeStep(batch, result, self.runs_ahead)


class AtOnce(Executor):
    """Runs what is submitted in the calling thread, so that every run of a load is the same."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(call(*args, **kwargs))
        return future


def make_tokenizer() -> Any:
    """Token 7 is the letter h, and so on: every token has one character, and all of them text."""
    tokenizer = Tokenizer(models.WordLevel({chr(ord("a") + i): i for i in range(VOCABULARY)}, unk_token="a"))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def fake_llm(monkeypatch: pytest.MonkeyPatch, setup: Setup, tokenizer: Any, *, runs_ahead: bool = False) -> LLM:
    """An `LLM` of these sizes."""
    simulation = Simulation(setup)
    processor = SimpleNamespace(
        process=lambda prompt, **_: prompt,
        check_params=lambda params: None,
        bad_words_ids=lambda params: [],
        mm_processor=SimpleNamespace(cache={}),
        close=lambda: None,
        part_of=lambda prompt: PLAIN,
    )
    model = SimpleNamespace(
        context=SimpleNamespace(tokenizer=tokenizer),
        input_processor=processor,
        scheduler=simulation.scheduler,
        runner=FakeRunner(simulation.worker, runs_ahead=runs_ahead),
        executor=None,
        closing=ExitStack(),
        places={},
        capture=None,
        eos_token_ids=frozenset({EOS}),
        max_model_len=setup.max_model_len,
    )
    located = SimpleNamespace(sampling=SamplingParams(), use=ModelUse())
    monkeypatch.setattr("corellm.engine.llm_engine.locate", lambda config: located)
    monkeypatch.setattr("corellm.loading.dummy_steps.is_healthy", lambda runner: True)
    monkeypatch.setattr("corellm.loading.loading.load", lambda config, located, check_encoders: model)
    llm = LLM("no model")
    llm._pool.shutdown()
    llm._pool = AtOnce()  # type: ignore[assignment]
    return llm


def params(**given: Any) -> SamplingParams:
    """Parameters as these tests want them."""
    return SamplingParams(**{"temperature": 0, "max_tokens": 9, **given})
