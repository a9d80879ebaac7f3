"""Drafts of what a form leaves no choice of: results are those without, in fewer steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corellm import LLM, ReasoningParams, SamplingParams, StructuredOutputsParams
from corellm.scheduling.batch import NewSequence
from corellm_speculative.costs import StepCosts
from corellm_speculative.forms import FormDrafting
from corellm_speculative.settings import DraftSettings
from corellm_testing.together import generate_together

SCHEMA = {
    "type": "object",
    "properties": {"number_of_sides": {"type": "integer", "maximum": 99}, "is_confirmed": {"type": "boolean"}},
    "required": ["number_of_sides", "is_confirmed"],
    "additionalProperties": False,
}
COMPACT = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)
THINKS = StructuredOutputsParams(
    choice=["circle", "square"], reasoning=ReasoningParams(is_begun=True, end="/end of it/", max_tokens=4)
)
REQUESTS: list[dict[str, Any]] = [
    {"structured_outputs": COMPACT, "logprobs": 2},
    {"structured_outputs": COMPACT, "n": 2, "stop": ["is_con"], "temperature": 0},
    {"structured_outputs": THINKS, "repetition_penalty": 1.2},
    {"structured_outputs": StructuredOutputsParams(regex="(one two three ){2}[a-c]+"), "min_tokens": 30},
    {"structured_outputs": COMPACT, "max_tokens": 9},
    {"logprobs": 0},
]


def told(outputs: list[Any]) -> list[Any]:
    return [[(c.token_ids, c.text, c.finish_reason, c.logprobs) for c in output.outputs] for output in outputs]


def test_results_are_those_without(tiny_llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Crowded, so that requests are preempted and prompts computed in chunks; most drafts of keys are right."""
    monkeypatch.setattr(StepCosts, "least_chance", lambda self, num_sequences: 0.0)
    params = [SamplingParams(**{"max_tokens": 60, "seed": i, **one}) for i, one in enumerate(REQUESTS)]
    prompts = [f"shape {i}: " + "one two three " * i for i in range(len(params))]
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 200, "block_size": 8}
    with LLM(str(tiny_llava), **options, enable_prefix_caching=False) as llm:
        wanted = [
            told(llm.generate([prompt], [one], use_tqdm=False))[0] for prompt, one in zip(prompts, params, strict=True)
        ]
    crowded = {"num_kv_blocks": 26, "max_num_batched_tokens": 40}
    with LLM(str(tiny_llava), **options, **crowded, speculative_config={"method": "forms"}) as llm:
        assert told(generate_together(llm, prompts, params)) == wanted
        stats = llm.engine.scheduler.get_stats()
    num_right = sum(stats.accepted_per_position)
    assert stats.num_preemptions
    assert len(stats.accepted_per_position) > 8
    assert num_right > 40
    assert num_right < stats.num_draft_tokens


class Foreseeing:
    """A sampling state whose form leaves one text."""

    def __init__(self, foreseen: list[int]) -> None:
        self._foreseen = foreseen

    def foreseen(self, tokens: list[int]) -> list[int]:
        return self._foreseen[self._foreseen.index(tokens[-1]) + 1 :] if tokens[-1] in self._foreseen else []


def test_what_is_often_wrong_is_drafted_no_more() -> None:
    """As other tokens come than are foreseen; of what comes as foreseen more and more is drafted."""
    part = FormDrafting(DraftSettings.of({"method": "forms"}))
    for name in ("right", "wrong", "free"):
        form = None if name == "free" else COMPACT
        part.add(NewSequence(name, [1], [], SamplingParams(structured_outputs=form), (), frozenset()))
    foreseen = list(range(100, 700))
    for name in ("right", "wrong"):
        part._sequences[name].sampling = Foreseeing(foreseen)  # type: ignore[assignment]
    assert 1 <= len(part.guess({"right": [100]})["right"]) < 16
    wrong = part.guess({"wrong": [100], "free": [3]})
    assert [*wrong] == ["wrong"]
    token, numbers = 100, [(1, 1)]
    for _ in range(30):
        came = [*range(token + 1, token + 2 + numbers[-1][0])]  # the drafts, which were right, and one more
        drafted = part.guess({"right": came, "wrong": [100]})
        token = came[-1]
        numbers.append((len(drafted.get("right", ())), len(drafted.get("wrong", ()))))
    assert numbers[-1] == (16, 0)
    part.end("right")
    part.forget()
    assert not part.guess({"right": [100]})
