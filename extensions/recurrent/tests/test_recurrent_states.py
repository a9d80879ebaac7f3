"""Models whose layers keep a state give the tokens of transformers' `generate`, however their sequences are cut."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from corellm import LLM, SamplingParams
from corellm.loading import loading
from corellm.sampling.sampler import Sampler
from corellm.worker.decode_graphs import StaticInputs
from corellm.worker.model_runner import ModelRunner
from corellm_recurrent import checking
from corellm_recurrent.mixer import Mixer
from corellm_recurrent.states import RecurrentStates
from corellm_testing.tiny_text import make_tiny_checkpoint
from corellm_testing.together import generate_together
from corellm_transformers import tiny as multimodal
from tests.fixtures import random_image
from tests.text_models.parity import LENGTHS, PROMPTS, Model, generated
from tests.text_models.stateful import MAIN, MORE
from tests.worker.test_drafts import guessing

_SCARCE = {"block_size": 8, "num_kv_blocks": 16}
"""16 blocks of 8 tokens hold the longest request, but not all together."""
ENGINES: dict[str, dict[str, Any]] = {
    "whole": {},
    "chunks-of-7-blocks-of-32": {"max_num_batched_tokens": 7, "block_size": 32},
    "recompute-chunks-of-64": {**_SCARCE, "max_num_batched_tokens": 64},
    "swap-chunks-of-24": {**_SCARCE, "max_num_batched_tokens": 24, "preemption_mode": "swap"},
}
"""Sizes of chunks and of blocks, kinds of preemption: every architecture of `MAIN` meets them all."""
CASES = [(name, engine) for name in MAIN for engine in ENGINES]
CASES += [(name, "swap-chunks-of-24") for name in MORE]
_BY_TOKEN = ("JambaForCausalLM", "MambaForCausalLM", "FalconMambaForCausalLM")
"""Models without a prefix cache, as their layers go on from a state token by token."""
_EXACT = ("Lfm2ForCausalLM", "whole")
"""A model whose layers give a token the same bits whatever runs beside it."""


@pytest.fixture(autouse=True)
def _short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that prompts as short as these have some."""
    monkeypatch.setattr(checking, "_SEGMENT", 64)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """`model(architecture)`: written and generated from once."""
    made: dict[str, Model] = {}

    def make(architecture: str) -> Model:
        if architecture not in made:
            config = (MAIN | MORE)[architecture]
            path = make_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), architecture=architecture, **config)
            made[architecture] = Model(path, generated(architecture, path))
        return made[architecture]

    return make


def _states(llm: LLM) -> RecurrentStates:
    (states,) = (part for part in llm.engine.runner.parts if isinstance(part, RecurrentStates))
    return states


def _require_all_given_back(llm: LLM) -> None:
    """No state is left when no request is."""
    states = _states(llm)
    states.rows.check_integrity()
    assert (states.rows.num_held, states.num_parked) == (0, 0)
    llm.engine.scheduler.blocks.check_integrity()


@pytest.mark.parametrize("architecture", MAIN | MORE)
def test_outputs_are_varied_and_depend_on_the_state(
    model: Callable[[str], Model], architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With zeros in place of states nearly all outputs are others: equal tokens prove something of the states."""
    tiny = model(architecture)
    assert len({tuple(one.token_ids[:9]) for one in tiny.wanted}) == len(PROMPTS)
    run = Mixer.run

    def forgetful(mixer: Mixer, hidden: Tensor, states: Sequence[Tensor] | None, *rest: Any) -> Any:
        return run(mixer, hidden, None if states is None else [torch.zeros_like(state) for state in states], *rest)

    params = [SamplingParams(temperature=0, max_tokens=n, min_tokens=n) for n in LENGTHS]
    with tiny.engine(enforce_eager=True) as llm:  # a recorded plan does not run the module's code
        monkeypatch.setattr(Mixer, "run", forgetful)
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    pairs = [(output.outputs[0].token_ids, want.token_ids) for output, want in zip(outputs, tiny.wanted, strict=True)]
    short = [i for i, want in enumerate(tiny.wanted) if len(want.prompt_token_ids) <= 64]
    assert all(pairs[i][0][0] == pairs[i][1][0] for i in short), "a segment runs at once, without a state"
    assert short
    assert sum(got != want for got, want in pairs) >= 4


@pytest.mark.parametrize(("architecture", "engine"), CASES)
def test_tokens_equal_transformers(model: Callable[[str], Model], architecture: str, engine: str) -> None:
    """Batched, in chunks, preempted in both ways, in blocks of several sizes: the same tokens, twice.

    The second time from snapshots, where the model has some and they are not evicted.
    """
    tiny, options = model(architecture), ENGINES[engine]
    with tiny.engine(**options) as llm:
        outputs, again = tiny.require_equal(llm), tiny.require_equal(llm)
        reused = sum(output.num_cached_tokens for output in again)
        assert not reused if architecture in _BY_TOKEN else reused or "num_kv_blocks" in options
        preempted = sum(output.metrics.num_preemptions for output in outputs + again)
        assert (preempted > 0) == ("num_kv_blocks" in options)
        _require_all_given_back(llm)


@pytest.mark.parametrize(("architecture", "engine"), [*((name, "swap-chunks-of-24") for name in MAIN), _EXACT])
def test_drafts_leave_the_states_as_they_would_be(
    model: Callable[[str], Model], architecture: str, engine: str
) -> None:
    """Tokens are transformers', with drafts of which every fourth is wrong.

    And log-probabilities those without drafts, bit for bit, where prompts are computed whole, by the compiled kernels.
    """
    tiny, options = model(architecture), ENGINES[engine]
    known = {tuple(want.prompt_token_ids): [want.token_ids] for want in tiny.wanted}
    with guessing(known) as part, tiny.engine(**options) as llm:
        outputs = tiny.require_equal(llm)
        counts = llm.engine.scheduler.get_stats()
        _require_all_given_back(llm)
    assert part.num_drafts > sum(counts.accepted_per_position) > 15
    if not options and not torch.cuda.is_available() and os.environ.get("CORELLM_CPU_KERNELS") != "off":
        with tiny.engine() as llm:
            plain = tiny.require_equal(llm)
        assert [one.outputs[0].logprobs for one in outputs] == [one.outputs[0].logprobs for one in plain]


_MANY_HEADS = {"linear_num_value_heads": 32, "linear_num_key_heads": 16}
"""With a number of heads that fills torch's vectors: it rounds what is left over otherwise."""
_LONG = "Look with care, one two three four five six seven eight nine ten. "


@pytest.mark.parametrize(
    ("architecture", "settings", "dtype"),
    [
        ("Lfm2ForCausalLM", {}, "float32"),
        ("BambaForCausalLM", {}, "float32"),
        ("Qwen3_5ForCausalLM", _MANY_HEADS, "float32"),
        ("Qwen3_5ForCausalLM", _MANY_HEADS, "bfloat16"),
    ],
)
def test_snapshots_and_recorded_plans_change_no_bit(
    architecture: str, settings: dict[str, Any], dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of tokens and log-probabilities: alone without a cache and a plan; with both, in small chunks, among others in
    plans with rows of padding, and preempted in both ways.
    """
    sizes: list[int] = []
    fill = StaticInputs.fill
    monkeypatch.setattr(
        StaticInputs, "fill", lambda self, batch, size, *rest: (sizes.append(size), fill(self, batch, size, *rest))[1]
    )
    monkeypatch.setattr(loading, "plan_sizes_for_cpu", lambda most: [1, 3, most])
    path = make_tiny_checkpoint(tmp_path, architecture=architecture, **(MAIN | MORE)[architecture] | settings)
    prompts = [_LONG * 2, _LONG * 2 + "left", _LONG + _LONG.upper(), _LONG * 2 + "left", "yes"]
    params = [
        SamplingParams(temperature=0, max_tokens=n, min_tokens=n, logprobs=2, n=count)
        for n, count in ((20, 1), (7, 2), (9, 1), (12, 1), (16, 1))
    ]

    def outcomes(rounds: int, **options: Any) -> tuple[list[Any], int, int]:
        with LLM(str(path), dtype=dtype, max_model_len=120, **options) as llm:
            outputs = [output for _ in range(rounds) for output in generate_together(llm, prompts, params)]
            llm.engine.scheduler.blocks.check_integrity()
        of = [[(one.token_ids, one.logprobs) for one in output.outputs] for output in outputs]
        reused = sum(output.num_cached_tokens for output in outputs)
        return of, reused, sum(output.metrics.num_preemptions for output in outputs)

    alone, reused, _ = outcomes(1, max_num_seqs=1, enable_prefix_caching=False, enforce_eager=True)
    assert not reused
    assert not sizes
    exact = not torch.cuda.is_available() and os.environ.get("CORELLM_CPU_KERNELS") != "off"
    for mode, budget in (("recompute", 96), ("swap", 7)):
        shared, reused, preempted = outcomes(
            2, block_size=8, num_kv_blocks=26, max_num_batched_tokens=budget, preemption_mode=mode
        )
        assert reused, mode
        assert preempted, mode
        if exact:
            assert {1, 3} < set(sizes)
            assert shared == 2 * alone, mode


def test_a_conversation_goes_on_behind_its_image(tmp_path: Path) -> None:
    """The second turn computes its end only, to the same bits as the whole; behind another image nothing is reused."""
    multimodal.make_tiny_checkpoint(tmp_path, architecture="Qwen3_5ForConditionalGeneration")
    params = SamplingParams(temperature=0, max_tokens=9, min_tokens=9, logprobs=2)

    def outcomes(**options: Any) -> list[tuple[list[int], Any, int]]:
        outcomes = []
        with LLM(str(tmp_path), dtype="float32", max_model_len=512, **options) as llm:
            for seed in (1, 2):
                image = {"type": "image", "image": random_image(160, 96, seed)}
                messages: list[Any] = [{"role": "system", "content": _LONG}]
                for text in (_LONG + "What is it?", "And what else?"):
                    of_image = [image] if len(messages) == 1 else []
                    messages.append({"role": "user", "content": [*of_image, {"type": "text", "text": text}]})
                    (output,) = llm.chat(messages, params, use_tqdm=False)
                    (one,) = output.outputs
                    outcomes.append((one.token_ids, one.logprobs, output.num_cached_tokens))
                    messages.append({"role": "assistant", "content": "one two three"})
        return outcomes

    whole, turns = outcomes(enable_prefix_caching=False), outcomes(max_num_batched_tokens=80)
    assert [one[:2] for one in turns] == [one[:2] for one in whole]
    assert whole[0][:2] != whole[2][:2]
    assert [cached for *_, cached in turns] == [0, 64, 0, 64]


@pytest.mark.parametrize("architecture", MAIN)
def test_a_step_that_fails_runs_again_from_the_same_states(
    model: Callable[[str], Model], architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests run again one by one, and go on as if nothing had happened."""
    failed: list[int] = []
    start = Sampler.start

    def failing(sampler: Sampler, logits: Tensor, *args: Any, **kwargs: Any) -> Any:
        if len(logits) > 1 and len(failed) < 4:
            failed.append(len(logits))
            raise RuntimeError("injected after the forward pass")
        return start(sampler, logits, *args, **kwargs)

    tiny = model(architecture)
    with tiny.engine(max_num_batched_tokens=16) as llm:
        monkeypatch.setattr(Sampler, "start", failing)
        tiny.require_equal(llm)
        _require_all_given_back(llm)
    assert len(failed) == 4


@pytest.mark.parametrize("architecture", ["Lfm2ForCausalLM", "GraniteMoeHybridForCausalLM"])
def test_a_request_that_fails_leaves_the_others_their_states(
    model: Callable[[str], Model], architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only it fails; the others have the reference's tokens."""
    tiny, run = model(architecture), ModelRunner.run
    poisoned = len(tiny.wanted[2].prompt_token_ids)

    def failing(runner: ModelRunner, chunks: Any, states: Any, step: Any) -> None:
        run(runner, chunks, states, step)
        if any(c.start + c.num_tokens == poisoned for c in chunks if c.request_id.startswith("2")):
            raise RuntimeError("injected")

    params = [SamplingParams(temperature=0, max_tokens=n, min_tokens=n) for n in LENGTHS]
    monkeypatch.setattr(ModelRunner, "run", failing)
    with tiny.engine(max_num_batched_tokens=24) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False, on_error="return")
        _require_all_given_back(llm)
    assert [output.error is not None for output in outputs] == [False, False, True, False, False]
    for i in (0, 1, 3, 4):
        assert outputs[i].outputs[0].token_ids == tiny.wanted[i].token_ids


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_aborts_give_states_back(model: Callable[[str], Model], mode: str) -> None:
    """At every moment, of running and of swapped requests; the others go on."""
    tiny, num_parked = model("Qwen3NextForCausalLM"), 0
    with tiny.engine(**_SCARCE, max_num_batched_tokens=24, preemption_mode=mode) as llm:
        engine = llm.engine
        for num_steps in range(2, 30, 2):
            for i, prompt in enumerate(PROMPTS):
                n = LENGTHS[i]
                engine.add_request(str(i), prompt, SamplingParams(temperature=0, max_tokens=n, min_tokens=n))
            outputs: dict[str, list[int]] = {}
            for step in range(400):
                if step == num_steps:
                    num_parked += _states(llm).num_parked
                    engine.abort_request("3", silently=True)
                    engine.abort_request("4", silently=True)
                for output in engine.step():
                    outputs[output.request_id] = output.outputs[0].token_ids
                if not engine.has_unfinished_requests():
                    break
            assert [outputs[str(i)] for i in range(3)] == [tiny.wanted[i].token_ids for i in range(3)]
            _require_all_given_back(llm)
    assert (num_parked > 0) == (mode == "swap")


def test_several_outputs_of_a_prompt(model: Callable[[str], Model]) -> None:
    """Each has a state of its own."""
    tiny = model("Lfm2ForCausalLM")
    params = SamplingParams(temperature=0, n=3, max_tokens=LENGTHS[3], min_tokens=LENGTHS[3])
    with tiny.engine(max_num_batched_tokens=20) as llm:
        (output,) = llm.generate(PROMPTS[3], params, use_tqdm=False)
    assert [one.token_ids for one in output.outputs] == [tiny.wanted[3].token_ids] * 3


@pytest.mark.parametrize("architecture", ["Mamba2ForCausalLM", "MambaForCausalLM"])
def test_a_residual_in_float32_beside_weights_in_bfloat16(model: Callable[[str], Model], architecture: str) -> None:
    """Norms and the output layer take both; the next token is as likely as in transformers."""
    tiny = model(architecture)
    reference = getattr(transformers, architecture).from_pretrained(tiny.path, dtype=torch.bfloat16).eval()
    ids = torch.tensor([tiny.wanted[1].prompt_token_ids])
    with torch.inference_mode():
        wanted = reference(ids).logits[0, -1].float().log_softmax(dim=-1)
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=5)
    with LLM(str(tiny.path), dtype="bfloat16", max_model_len=120) as llm:
        (output,) = llm.generate(PROMPTS[1], params, use_tqdm=False)
    assert output.outputs[0].logprobs is not None
    given = {token: entry.logprob for token, entry in output.outputs[0].logprobs[0].items()}
    assert given == pytest.approx({token: float(wanted[token]) for token in given}, abs=0.1)


def test_the_log_says_what_is_off_and_what_states_take(
    model: Callable[[str], Model], caplog: pytest.LogCaptureFixture
) -> None:
    """One line each."""
    with caplog.at_level(logging.INFO), model("JambaForCausalLM").engine(max_num_seqs=8):
        pass
    lines = [record.getMessage() for record in caplog.records]
    assert sum("prefix caching is off" in line for line in lines) == 1
    assert not any("do not run as graphs" in line for line in lines)
    assert sum("keep a state: 2" in line and "8 at once" in line for line in lines) == 1
    assert sum("JambaMambaMixer: " in line for line in lines) == 1
