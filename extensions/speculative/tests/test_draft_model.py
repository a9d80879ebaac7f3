"""Drafts of a model: how many are right, what they run in, what memory they take, and which models are refused.

That they change no output `test_same_results` shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from corellm import LLM, SamplingParams
from corellm.errors import ConfigError
from corellm.worker.decode_graphs import DecodeGraphs
from corellm.worker.input_batch import FlatBatch
from corellm.worker.model_runner import ModelRunner
from corellm_speculative import model_drafting
from corellm_speculative.model_drafting import ModelDrafting
from corellm_testing.tiny_text import make_tiny_checkpoint
from corellm_testing.together import generate_together
from extensions.speculative.tests.draft_checkpoints import near, stranger
from tests.fixtures import random_image
from tests.text_models.stateful import MAIN

NUM_DRAFTS = 4
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 200, "max_num_seqs": 2, "generation_config": "none"}
TEXTS = ["USER: count to ten ASSISTANT:", "USER: name a colour ASSISTANT:"]
GREEDY = SamplingParams(temperature=0, max_tokens=41, ignore_eos=True)
DRAWN = SamplingParams(temperature=1.0, top_p=0.95, seed=7, max_tokens=41, ignore_eos=True, repetition_penalty=1.1)


@pytest.fixture(autouse=True)
def to_the_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draft whether it pays or not: tests have no time."""
    monkeypatch.setattr(model_drafting, "plan_depths", lambda acceptances, most, steps, drafts: most)


@pytest.fixture(scope="module")
def itself(tiny_llava: Path) -> Iterator[LLM]:
    """A model that drafts for itself."""
    config = {"model": str(tiny_llava), "num_speculative_tokens": NUM_DRAFTS}
    with LLM(str(tiny_llava), num_kv_blocks=60, max_num_batched_tokens=80, speculative_config=config, **OPTIONS) as llm:
        yield llm


def part_of(llm: LLM) -> ModelDrafting:
    """Return what drafts."""
    (part,) = [part for part in llm.engine.runner.parts if isinstance(part, ModelDrafting)]
    return part


@pytest.mark.parametrize("params", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_model_that_drafts_for_itself_is_always_right(itself: LLM, params: SamplingParams) -> None:
    """Greedy, and where tokens are drawn: the same random number chooses the same token."""
    before = itself.engine.scheduler.get_stats()
    itself.generate(TEXTS, params, use_tqdm=False)
    after = itself.engine.scheduler.get_stats()
    drafted = after.num_draft_tokens - before.num_draft_tokens
    right = sum(after.accepted_per_position) - sum(before.accepted_per_position)
    assert drafted == right == 2 * 32  # of each output one token in five, and the first, is a step's own
    assert after.num_drafts - before.num_drafts == 2 * 8


def test_a_long_prompt_is_read_in_chunks(itself: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """No longer ones than the model's own, while shorter ones are drafted."""
    longest: list[int] = []
    forward = ModelRunner.forward

    def noted(runner: ModelRunner, batch: FlatBatch, *args: Any) -> torch.Tensor:
        longest.append(len(batch.input_ids))
        return forward(runner, batch, *args)

    monkeypatch.setattr(ModelRunner, "forward", noted)
    before = itself.engine.scheduler.get_stats()
    itself.generate([[*range(200, 330)], [5, 6, 7]], GREEDY, use_tqdm=False)
    after = itself.engine.scheduler.get_stats()
    assert max(longest) <= 80
    assert sum(longest) > 2 * 130  # of both models
    assert after.num_draft_tokens - before.num_draft_tokens == sum(after.accepted_per_position) - sum(
        before.accepted_per_position
    )


def test_blocks_of_the_draft_model_come_back(itself: LLM) -> None:
    """Of outputs that ended, were aborted, or had an image, which the draft model does not see."""
    image = {
        "prompt": "USER: <image>\nWhat is this? ASSISTANT:",
        "multi_modal_data": {"image": random_image(40, 30, 1)},
    }
    before = itself.engine.scheduler.get_stats().num_draft_tokens
    itself.generate([image, *TEXTS], GREEDY, use_tqdm=False)
    assert itself.engine.scheduler.get_stats().num_draft_tokens > before + 60
    engine = itself.engine
    engine.add_request("a", engine.input_processor.process(TEXTS[0]), GREEDY)
    for _ in range(3):
        engine.step()
    assert len(part_of(itself).model._free) < 60
    engine.abort_request("a")
    itself.generate(TEXTS, SamplingParams(max_tokens=1), use_tqdm=False)
    engine.step()
    assert sorted(part_of(itself).model._free) == [*range(1, 61)]


def test_steps_with_more_rows_than_sequences_are_replayed(itself: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of both models: after the prompts no step runs layer by layer."""
    if itself.engine.runner.graphs is None:
        pytest.skip("no kernels here whose steps are recorded")
    rows: list[int] = []
    eager: list[int] = []
    replay, forward = DecodeGraphs.run, ModelRunner.forward

    def noted(graphs: DecodeGraphs, batch: FlatBatch, token_ids: Any = None) -> torch.Tensor:
        rows.append(len(batch.input_ids))
        return replay(graphs, batch, token_ids)

    def noted_forward(runner: ModelRunner, batch: FlatBatch, *args: Any) -> torch.Tensor:
        eager.append(len(batch.input_ids))
        return forward(runner, batch, *args)

    monkeypatch.setattr(DecodeGraphs, "run", noted)
    monkeypatch.setattr(ModelRunner, "forward", noted_forward)
    generate_together(itself, TEXTS, [GREEDY] * 2)
    assert max(rows) == OPTIONS["max_num_seqs"] * (1 + NUM_DRAFTS)
    assert len(eager) <= 4  # each prompt, in both models


def test_memory_is_shared_with_the_cache_of_the_draft_model(tiny_llava: Path) -> None:
    """A model that drafts for itself leaves half of the blocks."""
    counts = []
    for config in (None, {"model": str(tiny_llava), "num_speculative_tokens": 1}):
        given = {**OPTIONS, "max_num_seqs": 8, "kv_cache_memory": 1 << 18, "speculative_config": config}
        with LLM(str(tiny_llava), **given) as llm:
            counts.append(llm.engine.scheduler.blocks.capacity)
    assert counts[1] == counts[0] // 2


@pytest.mark.parametrize("make", [near, stranger])
def test_another_model_is_right_now_and_then(tiny_llava: Path, tmp_path: Path, make: Any) -> None:
    """A model that is near more often than one that knows nothing, which has its own number of logits.

    Packed weights of both are kept, where there are kernels that pack.
    """
    cache = tmp_path / "cache"
    config = {"model": str(make(tiny_llava, tmp_path / "draft")), "num_speculative_tokens": NUM_DRAFTS}
    with LLM(str(tiny_llava), num_kv_blocks=60, speculative_config=config, weight_cache=cache, **OPTIONS) as llm:
        llm.generate(TEXTS, [GREEDY, DRAWN], use_tqdm=False)
        counts = llm.engine.scheduler.get_stats()
    share = sum(counts.accepted_per_position) / counts.num_draft_tokens
    assert share < 1
    assert (share > 0.3) == (make is near)
    assert not cache.exists() or len([*cache.iterdir()]) == 2


def test_a_model_with_a_state_drafts(tmp_path: Path) -> None:
    """It goes on from the state behind the last right draft: for itself it is always right, for another one not."""
    architecture, config = next(iter(MAIN.items()))
    model = make_tiny_checkpoint(tmp_path / "model", architecture=architecture, **config)
    drafts = {"model": str(model), "num_speculative_tokens": NUM_DRAFTS}
    prompts: list[Any] = [{"prompt_token_ids": [*range(200, 290)]}, {"prompt_token_ids": [5, 6, 7]}]
    with LLM(str(model), num_kv_blocks=60, max_num_batched_tokens=40, speculative_config=drafts, **OPTIONS) as llm:
        generate_together(llm, prompts, [GREEDY, DRAWN])
        counts = llm.engine.scheduler.get_stats()
        rows = part_of(llm).model._states.rows  # type: ignore[union-attr]
        llm.engine.step()
        rows.check_integrity()
        assert rows.num_held == 0
    assert counts.num_draft_tokens == sum(counts.accepted_per_position) > 50
    drafts["model"] = str(near(model, tmp_path / "near", 0.1))
    outputs = []
    for given in (None, drafts):
        with LLM(str(model), num_kv_blocks=60, speculative_config=given, **OPTIONS) as llm:
            found = llm.generate(prompts, [GREEDY, DRAWN], use_tqdm=False)
            outputs.append([list(output.outputs[0].token_ids) for output in found])
            counts = llm.engine.scheduler.get_stats()
    assert outputs[0] == outputs[1]
    assert counts.num_draft_tokens > sum(counts.accepted_per_position) > 10


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("another vocabulary", "has another vocabulary: token .* take one with the model's tokenizer"),
        ("items' states", "attends to states of items"),
        ("nothing", "speculative_config: the draft model: no model '/nowhere'"),
    ],
)
def test_what_cannot_draft_is_refused(tiny_llava: Path, tmp_path: Path, kind: str, message: str) -> None:
    """By name, at load."""
    target, draft = tiny_llava, tmp_path / "draft"
    if kind == "another vocabulary":
        make_tiny_checkpoint(draft)
    elif kind == "items' states":
        from corellm_florence2.tiny import make_tiny_checkpoint as make_florence2

        target = make_florence2(draft)
    else:
        draft = Path("/nowhere")
    given = {**OPTIONS, "speculative_config": {"model": draft, "num_speculative_tokens": 2}}
    with pytest.raises(Exception, match=message) as raised:
        LLM(str(target), num_kv_blocks=60, **given)
    assert isinstance(raised.value, ConfigError) or kind == "nothing"
