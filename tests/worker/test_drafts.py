"""Drafts change no output: what is sampled is checked against them, and what was computed too far is given up.

The oracle is the same engine without drafts; a part of a test's extension guesses from its outputs, wrong now and then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from corellm import LLM, SamplingParams
from corellm.errors import ConfigError, CorellmError
from corellm.hookspecs import hookimpl
from corellm.outputs import RequestOutput
from corellm.plugin.extensions import load_extensions
from corellm.scheduling.batch import NewSequence, ScheduledBatch
from corellm.worker.decode_graphs import DecodeGraphs
from corellm.worker.input_batch import FlatBatch
from corellm.worker.model_runner import ModelRunner
from corellm.worker.parts.proposals import proposals_of
from corellm.worker.parts.step_part import StepPart
from corellm_testing.together import generate_together
from tests.fixtures import random_image
from tests.sampling.automaton import automata, automaton

Known = Mapping[tuple[int, ...], Sequence[Sequence[int]]]
"""Completions by prompt."""


class Guesses(StepPart):
    """Drafts up to three tokens of a known completion, every fourth of them wrong."""

    most_drafts = 3

    def __init__(self, known: Known) -> None:
        self._known, self._random = known, Random(0)
        self._sequences: dict[str, NewSequence] = {}
        self.num_steps = self.num_drafts = 0

    def begin(self, batch: ScheduledBatch) -> Mapping[str, CorellmError]:
        self.num_steps += bool(batch.chunks)
        self.num_drafts += sum(chunk.num_drafts for chunk in batch.chunks)
        for request_id in batch.released:
            self._sequences.pop(request_id, None)
        self._sequences.update({sequence.request_id: sequence for sequence in batch.new})
        return {}

    def forget(self) -> None:
        self._sequences.clear()

    def propose(self, sampled: Mapping[str, Sequence[int]]) -> Mapping[str, list[int]]:
        return {name: self._guess(self._sequences[name], tokens) for name, tokens in sampled.items()}

    def _guess(self, sequence: NewSequence, sampled: Sequence[int]) -> list[int]:
        output = [*sequence.output_token_ids, *sampled]
        for completion in self._known.get(tuple(sequence.prompt_token_ids), ()):
            if list(completion[: len(output)]) == output:
                right = completion[len(output) : len(output) + 3]
                return [token if self._random.random() < 0.75 else token // 2 for token in right]
        return []


@contextmanager
def guessing(known: Known) -> Iterator[Guesses]:
    """Inside the block, models are loaded with the part."""
    part = Guesses(known)

    class Extension:
        @hookimpl
        def offer_step_part(self) -> StepPart:
            return part

    extension = Extension()
    load_extensions().register(extension, name="the drafting extension")
    try:
        yield part
    finally:
        load_extensions().unregister(extension)


def load() -> tuple[list[Any], list[SamplingParams]]:
    """Return prompts and parameters of every kind that changes what is sampled, or where an output ends."""
    texts = [f"USER: number {i} is what? ASSISTANT:" for i in range(8)]
    image = {
        "prompt": "USER: <image>\nWhat is this? ASSISTANT:",
        "multi_modal_data": {"image": random_image(40, 30, 1)},
    }
    wanted: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1.0, "seed": 3, "logprobs": 2},
        {"temperature": 0.7, "seed": 4, "top_k": 9, "top_p": 0.9, "n": 2},
        {"temperature": 0, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "logprobs": 0},
        {"temperature": 0, "constraint": automaton()},
        {"temperature": 1.0, "seed": 5, "constraint": automaton(9), "ignore_eos": False},
        {"temperature": 0, "bad_words": ["number"], "min_tokens": 4, "stop_token_ids": [*range(0, 200, 7)]},
        {"temperature": 0, "stop": [*"aeiou"]},
        {"temperature": 0, "max_tokens": 7},
    ]
    return [*texts, image], [SamplingParams(**{"max_tokens": 24, "ignore_eos": True, **given}) for given in wanted]


def told(output: RequestOutput) -> Any:
    """Return what must not differ: on a GPU, which rounds sums by the size of a batch, all but log-probabilities."""
    rounded = torch.cuda.is_available()
    return [
        (c.text, c.token_ids, c.finish_reason, c.stop_reason, *(() if rounded else (c.logprobs, c.cumulative_logprob)))
        for c in output.outputs
    ]


def known_of(outputs: Sequence[RequestOutput]) -> Known:
    """Return what the part may guess."""
    return {tuple(output.prompt_token_ids): [c.token_ids for c in output.outputs] for output in outputs}


@pytest.mark.parametrize("kind", ["plain", "no kernels", "few blocks", "bfloat16"])
def test_drafts_change_no_output(tiny_llava: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With compiled kernels and without, under preemption, for every kind of parameters; and they save steps."""
    if kind == "no kernels":
        monkeypatch.setenv("CORELLM_CPU_KERNELS", "off")
    given = {"few blocks": {"num_kv_blocks": 14}, "bfloat16": {"dtype": "bfloat16"}}.get(kind, {})
    options = {"dtype": "float32", "num_kv_blocks": 200, "max_model_len": 200, "max_num_seqs": 6, **given}
    with automata():
        with LLM(str(tiny_llava), **options) as llm:
            wanted = generate_together(llm, *load())
            assert options["num_kv_blocks"] > 20 or llm.engine.scheduler.get_stats().num_preemptions > 0
        with guessing({}) as silent, LLM(str(tiny_llava), **options) as llm:
            llm.generate(*load(), use_tqdm=False)
        with guessing(known_of(wanted)) as part, LLM(str(tiny_llava), **options) as llm:
            found = llm.generate(*load(), use_tqdm=False)
            llm.engine.scheduler.blocks.check_integrity()
    assert [told(output) for output in found] == [told(output) for output in wanted]
    assert part.num_drafts > 100
    assert part.num_steps < 0.8 * silent.num_steps


def test_a_request_that_fails_among_drafts_fails_alone(tiny_llava: Path) -> None:
    """As it does without: its constraint raises after some tokens; the one beside it is not disturbed."""
    prompts = ["USER: one ASSISTANT:", "USER: two ASSISTANT:"]
    plain = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    params = [plain, SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, constraint=automaton())]
    broken = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, constraint=automaton(fails="accept", at=5))
    with automata():
        with LLM(str(tiny_llava), dtype="float32", num_kv_blocks=64) as llm:
            wanted = llm.generate(prompts, params, use_tqdm=False)
        with guessing(known_of(wanted)), LLM(str(tiny_llava), dtype="float32", num_kv_blocks=64) as llm:
            first, second = llm.generate(prompts, [plain, broken], use_tqdm=False, on_error="return")
    assert told(first) == told(wanted[0])
    assert "the automaton fails in accept" in str(second.error)
    assert second.outputs[0].token_ids == wanted[1].outputs[0].token_ids[:6]


class Remembering(StepPart):
    """Takes no token back."""

    irreversible = "it remembers"


def test_a_part_that_cannot_go_back_is_refused_with_drafts() -> None:
    """A wrong draft would stay in it."""
    with pytest.raises(ConfigError, match=r"Guesses drafts tokens, and this model cannot take back .*: it remembers"):
        proposals_of([Guesses({}), Remembering()], torch.device("cpu"), 10)


def test_steps_with_drafts_are_replayed(tiny_llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where decodes are recorded plans: a sequence with drafts takes a row for each token, and none runs otherwise."""
    rows: list[int] = []
    replay = DecodeGraphs.run

    def noted(graphs: DecodeGraphs, batch: FlatBatch, token_ids: Any = None) -> torch.Tensor:
        rows.append(len(batch.input_ids))
        return replay(graphs, batch, token_ids)

    plain = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=1)
    with LLM(str(tiny_llava), dtype="float32", num_kv_blocks=64) as llm:
        if llm.engine.runner.graphs is None:
            pytest.skip("no kernels here whose steps are recorded")
        wanted = llm.generate("USER: one ASSISTANT:", plain, use_tqdm=False)
    monkeypatch.setattr(DecodeGraphs, "run", noted)
    with guessing(known_of(wanted)) as part, LLM(str(tiny_llava), dtype="float32", num_kv_blocks=64) as llm:
        found = llm.generate("USER: one ASSISTANT:", plain, use_tqdm=False)
        counts = llm.engine.scheduler.get_stats()
    assert told(found[0]) == told(wanted[0])
    assert sum(rows) - len(rows) == part.num_drafts == counts.num_draft_tokens > 10
    assert len(rows) + 2 >= part.num_steps  # but the prompt's, and the one that releases
    assert sum(counts.accepted_per_position) == 15 - len(rows)
    assert sorted(counts.accepted_per_position, reverse=True) == list(counts.accepted_per_position)


class Resting(Guesses):
    """Drafts nothing, and says so."""

    rests = True


@pytest.mark.parametrize("part", [Guesses, Resting])
def test_steps_run_ahead_while_the_part_rests(
    tiny_llava: Path, part: type[Guesses], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where steps are in flight while the host goes on; beside a part that may draft they wait for its drafts."""
    monkeypatch.setattr("tests.worker.test_drafts.Guesses", part)
    plain, ahead = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True), []
    launch_ahead = ModelRunner.launch_ahead
    monkeypatch.setattr(ModelRunner, "launch_ahead", lambda *args: (ahead.append(args), launch_ahead(*args))[1])
    with LLM(str(tiny_llava), dtype="float32", num_kv_blocks=64) as llm:
        wanted = llm.generate("USER: one ASSISTANT:", plain, use_tqdm=False)
    monkeypatch.setattr(DecodeGraphs, "asynchronous", True)
    with guessing({}), LLM(str(tiny_llava), dtype="float32", num_kv_blocks=64) as llm:
        if llm.engine.runner.graphs is None:
            pytest.skip("no kernels here whose steps are recorded")
        found = llm.generate("USER: one ASSISTANT:", plain, use_tqdm=False)
    assert told(found[0]) == told(wanted[0])
    assert bool(ahead) == part.rests


def test_two_parts_that_propose_are_refused() -> None:
    """Each would count on its own drafts being checked."""
    with pytest.raises(ConfigError, match="Guesses and Broken all propose drafts"):
        proposals_of([Guesses({}), StepPart(), Broken({})], torch.device("cpu"), 10)


class Broken(Guesses):
    """Fails, or drafts what no model has."""

    def propose(self, sampled: Mapping[str, Sequence[int]]) -> Mapping[str, list[int]]:
        if self.num_steps > 3:
            raise RuntimeError("no more")
        return {name: [10**6, 5] for name in sampled}


def test_a_part_that_fails_costs_its_drafts_alone(
    tiny_llava: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Tokens that do not exist are left out; an error turns drafts off, once."""
    monkeypatch.setattr("tests.worker.test_drafts.Guesses", Broken)
    plain = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with LLM(str(tiny_llava), dtype="float32", num_kv_blocks=64) as llm:
        wanted = llm.generate("USER: one ASSISTANT:", plain, use_tqdm=False)
    with guessing({}) as part, LLM(str(tiny_llava), dtype="float32", num_kv_blocks=64) as llm:
        found = llm.generate("USER: one ASSISTANT:", plain, use_tqdm=False)
    assert told(found[0]) == told(wanted[0])
    assert part.num_drafts == 0
    assert [record.message for record in caplog.records if "drafts" in record.message] == [
        "Broken failed; there are no drafts any more"
    ]
