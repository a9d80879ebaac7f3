"""Ctrl-C at every line of the engine: the call ends with it, nothing is lost or left, and the next call is right.

The oracle is the same load that was not interrupted, on a fake worker that notices every block, sequence or item that
is not what it should be.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest

import corellm
from corellm import LLM
from corellm.cli.conversation import print_text, stream
from corellm.engine.llm_engine import LLMEngine
from corellm.frontend.input_processor import ProcessedPrompt
from corellm.outputs import RequestOutput
from corellm.sampling_params import SamplingParams
from corellm_testing.together import generate_together
from tests.engine.fake_llm import fake_llm, make_tokenizer, params
from tests.scheduling.fake_worker import make_feature
from tests.scheduling.simulation import Setup

SWAP = Setup(
    block_size=2, num_blocks=14, num_host_blocks=12, encoder_capacity=8, max_model_len=28, max_num_batched_tokens=8,
    max_num_seqs=4, preemption="swap",
)  # fmt: skip
RECOMPUTE = Setup(
    block_size=2, num_blocks=18, encoder_capacity=8, max_model_len=28, max_num_batched_tokens=16, max_num_seqs=4,
    chunked=False,
)  # fmt: skip
ROOMY = Setup(max_num_seqs=5)
DRAFTS = replace(RECOMPUTE, drafts=True)
CASES = [(SWAP, False), (RECOMPUTE, False), (ROOMY, True), (DRAFTS, False)]
ROOMS = tuple(str(Path(corellm.__file__).parent / room) for room in ("engine", "frontend", "scheduling"))
DRIVERS = ("_complete", "_drive", "_abort_unfinished", "stream", "print_text")


def load() -> tuple[list[ProcessedPrompt], list[SamplingParams]]:
    """Shared prefixes and items, several completions, stop strings, log-probabilities, and one that never fits."""
    image, other = make_feature("image-1", 2, 4), make_feature("image-2", 3, 3)
    prompts = [
        ProcessedPrompt("a", [1, 2, 3, 3, 3, 3, 4], [image]),
        ProcessedPrompt("b", [1, 2, 3, 3, 3, 3, 5, 6], [image]),
        ProcessedPrompt("c", [7, 8, 9, 3, 3, 3, 9], [other]),
        ProcessedPrompt("d", [7, 8, 9, 10, 11]),
        ProcessedPrompt("e", [1] * 300),
        ProcessedPrompt("f", [12, 13]),
    ]
    wanted = [
        params(ignore_eos=True, max_tokens=14),
        params(n=2, logprobs=0, ignore_eos=True),
        params(stop=["no such text", *"bdfhjlnprtvxz"], min_tokens=3, ignore_eos=True, max_tokens=12, logprobs=0),
        params(ignore_eos=True, max_tokens=14, stop_token_ids=list(range(1, 40, 4))),
        params(),
        params(max_tokens=4, detokenize=False),
    ]
    return prompts, wanted


def told(output: RequestOutput) -> Any:
    """What must not differ."""
    return [(c.text, c.token_ids, c.logprobs, c.cumulative_logprob, c.finish_reason, c.stop_reason)
            for c in output.outputs], type(output.error)  # fmt: skip


def outputs(llm: LLM) -> list[Any]:
    prompts, wanted = load()
    llm.engine.reset_prefix_cache()
    return [told(output) for output in llm.generate(prompts, wanted, use_tqdm=False, on_error="return")]


def check_idle(llm: LLM) -> None:
    """Nothing is left of any request."""
    scheduler = llm.engine.scheduler
    scheduler.blocks.check_integrity()
    scheduler.encoder_cache.check_integrity()
    assert scheduler.blocks.num_free_blocks == scheduler.blocks.capacity
    assert scheduler.encoder_cache.referenced_embeds == 0
    assert not llm.engine.has_unfinished_requests()
    assert not scheduler.requests
    assert scheduler.num_running == scheduler.num_waiting == scheduler.num_swapped == 0


@dataclass
class Lines:
    """Counts the lines of the engine that run, and interrupts before one of them."""

    at: int | None = None
    count: int = 0

    def __post_init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def __enter__(self) -> Lines:
        self._before = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        # of `LLM` all that runs while it has its turn: where it takes it, Python itself never stops between two lines
        ours = code.co_filename.startswith(ROOMS) or code.co_name in DRIVERS
        return self._line if ours else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        if event == "line":
            self.count += 1
            if self.at is None:
                self.seen.append((frame.f_code.co_filename, frame.f_lineno))
            elif self.count == self.at:
                raise KeyboardInterrupt
        return self._line


def moments(seen: list[tuple[str, int]], rng: Random) -> list[int]:
    """For every line that ran, one of the times that it did."""
    times: dict[tuple[str, int], list[int]] = {}
    for number, line in enumerate(seen, start=1):
        times.setdefault(line, []).append(number)
    return sorted(rng.choice([numbers[0], numbers[0], numbers[0], rng.choice(numbers)]) for numbers in times.values())


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture(params=CASES, ids=["swap", "recompute", "ahead", "drafts"])
def llm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> Iterator[LLM]:
    setup, runs_ahead = request.param
    with fake_llm(monkeypatch, setup, tokenizer, runs_ahead=runs_ahead) as made:
        yield made


def test_the_load_is_worth_interrupting(llm: LLM) -> None:
    """It preempts, or runs ahead; and it ends in several ways."""
    told_of = [told(output) for output in generate_together(llm, *load(), on_error="return")]
    ends = {completion[4] for completions, _ in told_of for completion in completions}
    assert ends == {"length", "stop", "ignored"}
    runner: Any = llm.engine.runner
    assert llm.engine.scheduler.get_stats().num_preemptions > 0 or runner.num_ahead > 5


def test_drafts_change_no_output(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    """Texts, stop strings, log-probabilities and counts of steps with several tokens are those of one at a time."""
    found = []
    for drafts in (False, True):
        with fake_llm(monkeypatch, replace(ROOMY, drafts=drafts), tokenizer) as llm:
            found.append((outputs(llm), llm.engine.num_generated_tokens))
            assert (llm.engine.runner.worker.num_right_drafts > 10) == drafts  # type: ignore[attr-defined]
    assert found[0] == found[1]


def test_generate_interrupted_at_every_line(llm: LLM) -> None:
    """The interrupt comes out as itself, nothing is left of the call, and later calls are right."""
    wanted = outputs(llm)
    with Lines() as lines:
        assert outputs(llm) == wanted
    chosen = moments(lines.seen, Random(0))
    assert len(chosen) > 400
    if llm.engine.scheduler.config.preemption_mode != "swap":  # most lines are the same ones
        chosen = chosen[::4]
    for number, moment in enumerate(chosen):
        with Lines(at=moment), pytest.raises(KeyboardInterrupt):
            outputs(llm)
        (prompt, *_), (wish, *_) = load()
        assert told(llm.generate(prompt, wish, use_tqdm=False)[0]) == wanted[0], lines.seen[moment - 1]
        check_idle(llm)
        if number % 20 == 0:
            assert outputs(llm) == wanted
    assert outputs(llm) == wanted


def test_steps_go_on_after_an_interrupt(llm: LLM) -> None:
    """A request outlives interrupted steps: its text only grows, and its end is that of a run without interrupts."""
    wanted = dict(zip("abcdef", outputs(llm), strict=True))
    rng = Random(1)
    for _ in range(20):
        ended, lost = drive(llm.engine, rng)
        assert ended.items() <= wanted.items()
        assert ended.keys() | lost == wanted.keys()
        check_idle(llm)


def drive(engine: LLMEngine, rng: Random) -> tuple[dict[str, Any], set[str]]:
    """Run the load with an interrupt in every few steps.

    Returns:
        What came of the requests, and those whose end was on its way out of `step` when that was interrupted.
    """
    ended: dict[str, Any] = {}
    texts = dict.fromkeys("abcdef", "")
    engine.reset_prefix_cache()
    for name, prompt, wish in zip(texts, *load(), strict=True):
        engine.add_request(name, prompt, wish)
    for _ in range(1000):
        if not engine.has_unfinished_requests():
            break
        with Lines(at=rng.choice([rng.randint(1, 800), 10**9, 10**9])), suppress(KeyboardInterrupt):
            for output in engine.step():
                text, before = output.outputs[0].text, texts[output.request_id]
                assert text.startswith(before)
                texts[output.request_id] = text
                if output.finished:
                    ended[output.request_id] = told(output)
    return ended, texts.keys() - ended.keys()


def test_an_output_interrupted_at_every_line(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    """In a conversation on the terminal: the next output is right, and has nothing of the interrupted one."""
    with fake_llm(monkeypatch, ROOMY, tokenizer, runs_ahead=True) as llm:
        (first, _, other, *_), (wish, *_) = load()

        def text_of(prompt: ProcessedPrompt) -> str:
            llm.engine.reset_prefix_cache()
            return print_text(stream(llm.engine, "run", prompt, wish))

        wanted = text_of(other)
        with Lines() as lines:
            assert text_of(first) != wanted
        for moment in moments(lines.seen, Random(0)):
            with Lines(at=moment), suppress(KeyboardInterrupt):
                text_of(first)
            assert text_of(other) == wanted, lines.seen[moment - 1]
            check_idle(llm)


def test_a_reset_interrupted_at_every_line(llm: LLM) -> None:
    """`reset_mm_cache` leaves caches that can be used, and later calls are right."""
    wanted = outputs(llm)
    with Lines() as lines:
        llm.reset_mm_cache()
    for moment in range(1, lines.count + 1):
        assert outputs(llm) == wanted  # there are items to forget
        with Lines(at=moment), suppress(KeyboardInterrupt):
            llm.reset_mm_cache()
        assert outputs(llm) == wanted, lines.seen[moment - 1]
        check_idle(llm)


def test_a_reset_beside_a_step_in_flight(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    """The last request is aborted while the step after the last one is with the device already."""
    with fake_llm(monkeypatch, ROOMY, tokenizer, runs_ahead=True) as llm:
        (prompt, *_), (wish, *_) = load()
        wanted = told(llm.generate(prompt, wish, use_tqdm=False)[0])
        llm.engine.add_request("aborted", prompt, wish)
        llm.engine.step()
        llm.engine.step()
        llm.engine.abort_request("aborted", silently=True)
        llm.reset_mm_cache()
        assert told(llm.generate(prompt, wish, use_tqdm=False)[0]) == wanted
        check_idle(llm)


def test_interrupts_of_every_moment(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals between any two bytecodes, half of them followed by another one while the first is dealt with."""
    wanted, rng = outputs(llm), Random(2)
    # one that hits a callback of the garbage collector is lost to Python itself
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if rng.random() < 0.5:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 2e-4))
        while frame is not None:
            if frame.f_code.co_name == "run_prepared":  # of `LLM`; what comes too late is not for the test itself
                raise KeyboardInterrupt
            frame = frame.f_back

    before, interrupted = signal.signal(signal.SIGALRM, interrupt), 0
    try:
        for _ in range(150):
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 1e-2))
            try:
                outputs(llm)
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # a handler that still runs sets the timer again
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted
    assert outputs(llm) == wanted
    check_idle(llm)
