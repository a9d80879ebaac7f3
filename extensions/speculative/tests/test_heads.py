"""Heads on a model's hidden states: what they draft, beside what else, and which heads are refused.

That they change no output, `test_same_results` and `test_with_adapters` show, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from corellm import LLM, SamplingParams
from corellm.config import ModelConfig
from corellm.errors import CheckpointError, ConfigError
from corellm.loading.locating import locate
from corellm_speculative import model_drafting
from corellm_speculative.head_drafting import HeadDrafting
from corellm_testing.tiny_text import make_tiny_checkpoint
from corellm_testing.together import generate_together
from extensions.speculative.tests.head_checkpoints import ReferenceHead, make_agreeing, make_head

METHODS = ("eagle", "eagle3")
NUM_DRAFTS = 4
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 200, "max_num_seqs": 3, "generation_config": "none"}
GREEDY = SamplingParams(temperature=0, max_tokens=21, ignore_eos=True)
PROMPTS = [[*range(200, 290)], [5, 6, 7], [*range(40, 60)]]


@pytest.fixture(autouse=True)
def to_the_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draft whether it pays or not: tests have no time."""
    monkeypatch.setattr(model_drafting, "plan_depths", lambda acceptances, most, steps, drafts: most)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text model."""
    path = tmp_path_factory.mktemp("model")
    return make_tiny_checkpoint(path, num_hidden_layers=4, num_key_value_heads=2, intermediate_size=96)


def drafting(head: Path, method: str, **more: Any) -> dict[str, Any]:
    """Return the settings of drafts by a head."""
    return {"method": method, "model": str(head), "num_speculative_tokens": NUM_DRAFTS, **more}


def noting(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], list[int]]]:
    """Return a list that is filled with texts and the drafts behind them."""
    seen: list[tuple[list[int], list[int]]] = []
    guess = HeadDrafting.guess

    def noted(part: HeadDrafting, sampled: Mapping[str, Sequence[int]]) -> Mapping[str, list[int]]:
        found = guess(part, sampled)
        sequences: Mapping[str, Any] = part._sequences
        seen.extend((list(sequences[name]._known), list(drafts)) for name, drafts in found.items())
        return found

    monkeypatch.setattr(HeadDrafting, "guess", noted)
    return seen


@pytest.mark.parametrize(
    ("method", "more"),
    [("eagle", {}), ("eagle3", {}), ("eagle3", {"norm_before_residual": True})],
    ids=["eagle", "eagle3", "eagle3, normed residual"],
)
def test_drafts_are_those_of_the_reference(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, more: dict[str, Any]
) -> None:
    """Behind prompts in chunks and behind drafts that were wrong, in captured steps and in others."""
    seen = noting(monkeypatch)
    head = make_head(tmp_path, model, method, **more)
    config = drafting(head, method)
    with LLM(str(model), num_kv_blocks=60, max_num_batched_tokens=40, speculative_config=config, **OPTIONS) as llm:
        generate_together(llm, [{"prompt_token_ids": prompt} for prompt in PROMPTS], [GREEDY] * len(PROMPTS))
        counts = llm.engine.scheduler.get_stats()
    reference = ReferenceHead(head, model)
    assert len(seen) > 3 * len(PROMPTS)
    assert counts.num_draft_tokens > 30
    assert {prompt[0] for prompt in PROMPTS} == {text[0] for text, _ in seen}
    for text, drafts in seen:
        first = 50 if text[:90] == PROMPTS[0] else 0  # as many tokens as a step may have are kept
        assert drafts == reference.drafts(text, len(drafts), first), text


@pytest.mark.parametrize("method", METHODS)
def test_a_head_that_knows_the_model_is_always_right(tmp_path: Path, method: str) -> None:
    """Of each five tokens one is a step's own, and the first."""
    model, head = make_agreeing(tmp_path, method)
    outputs = []
    for config in (None, drafting(head, method)):
        with LLM(str(model), num_kv_blocks=60, speculative_config=config, **OPTIONS) as llm:
            found = generate_together(llm, [{"prompt_token_ids": prompt} for prompt in PROMPTS[1:]], [GREEDY] * 2)
            outputs.append([list(output.outputs[0].token_ids) for output in found])
            counts = llm.engine.scheduler.get_stats()
    assert outputs[0] == outputs[1]
    assert len({*map(tuple, outputs[0])}) == 2
    assert counts.num_draft_tokens == sum(counts.accepted_per_position) == 2 * 16


def test_published_forms_of_a_head_say_the_same(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and configuration as the library "speculators" writes them, with the model's embeddings in the file."""
    seen = noting(monkeypatch)
    head = make_head(tmp_path / "head", model, "eagle3")
    stated = json.loads((head / "config.json").read_text())
    tensors = {name.replace("midlayer.", "layers.0."): x for name, x in load_file(head / "model.safetensors").items()}
    tensors["embed_tokens.weight"] = load_file(model / "model.safetensors")["model.embed_tokens.weight"]
    other = tmp_path / "other"
    other.mkdir()
    own = {name: stated.pop(name) for name in ("draft_vocab_size", "eagle_config")}
    (other / "config.json").write_text(json.dumps({"transformer_layer_config": stated, **own}))
    save_file(tensors, other / "model.safetensors")
    for path in (head, other):
        with LLM(str(model), num_kv_blocks=60, speculative_config=drafting(path, "eagle3"), **OPTIONS) as llm:
            llm.generate({"prompt_token_ids": PROMPTS[1]}, GREEDY, use_tqdm=False)
    assert len(seen) > 4
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]


def test_a_head_reads_on_behind_a_cached_prefix(model: Path, tmp_path: Path) -> None:
    """And after a preemption, from there on where the model computes."""
    config = drafting(make_head(tmp_path, model, "eagle3"), "eagle3")
    long = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    prompts = [{"prompt_token_ids": [*PROMPTS[0], number]} for number in (7, 8, 9)]
    found = []
    for given in ({"num_kv_blocks": 60}, {"num_kv_blocks": 14, "speculative_config": config}):
        with LLM(str(model), **OPTIONS, **given) as llm:
            first = generate_together(llm, prompts, [long] * 3)
            again = generate_together(llm, prompts, [long] * 3)
            found.append([list(output.outputs[0].token_ids) for output in (*first, *again)])
            counts = llm.engine.scheduler.get_stats()
            cached = [output.num_cached_tokens for output in again]
            llm.engine.step()
            parts = [part for part in llm.engine.runner.parts if isinstance(part, HeadDrafting)]
    assert found[0] == found[1]
    assert counts.num_preemptions > 0
    assert counts.num_draft_tokens > 100
    assert max(cached) >= 80
    assert [len(part.model._free) for part in parts] == [14]


@pytest.mark.parametrize("method", METHODS)
def test_a_head_for_another_model_is_refused(model: Path, tmp_path: Path, method: str) -> None:
    """By its sizes, before weights are read."""
    other = make_tiny_checkpoint(tmp_path / "other", hidden_size=32)
    head = make_head(tmp_path / "head", other, method)
    with pytest.raises(ConfigError, match="is for a model with hidden_size 32, and this one has 64; take one for it"):
        locate(ModelConfig(model=str(model), speculative_config=drafting(head, method)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda config, tensors: tensors.pop("fc.weight"), r"lacks fc.weight \[64, 192\]"),
        (lambda config, tensors: tensors.pop("d2t"), r"lacks d2t"),
        (lambda config, tensors: tensors.update(input_norm=torch.ones(2)), "has input_norm, which heads of its layout"),
        (lambda config, tensors: config.update(model_type="mixtral"), "layers of the type 'mixtral'"),
        (lambda config, tensors: config.update(hidden_size="64"), "hidden_size in config.json must be a number"),
        (lambda config, tensors: config.update(head_dim=[16]), r"head_dim in config.json must be .* got \[16\]"),
        (lambda config, tensors: config.update(num_hidden_layers=2), "has 2 layers; heads of EAGLE-3 with one"),
        (lambda config, tensors: config.update(num_attention_heads=8), r"k_proj.weight is \[32, 128\], and by"),
        (lambda config, tensors: config["eagle_config"].update(eagle_aux_hidden_state_layer_ids=[1]), "three numbers"),
        (lambda config, tensors: config.update(vocab_size=99), r"is for a model with vocab_size|d2t is"),
    ],
)  # fmt: skip
def test_what_is_no_head_is_refused_before_weights_are_read(
    model: Path, tmp_path: Path, change: Any, message: str
) -> None:
    """By the name of the tensor or setting."""
    head = make_head(tmp_path, model, "eagle3")
    config, tensors = json.loads((head / "config.json").read_text()), load_file(head / "model.safetensors")
    change(config, tensors)
    (head / "config.json").write_text(json.dumps(config))
    save_file(tensors, head / "model.safetensors")
    with pytest.raises(ConfigError, match=message):
        locate(ModelConfig(model=str(model), speculative_config=drafting(head, "eagle3")))


def test_the_other_method_and_a_pickle_are_refused(model: Path, tmp_path: Path) -> None:
    """With the way out."""
    head = make_head(tmp_path / "head", model, "eagle3")
    with pytest.raises(ConfigError, match="is one of the method 'eagle3', not 'eagle'; say method='eagle3'"):
        locate(ModelConfig(model=str(model), speculative_config=drafting(head, "eagle")))
    (head / "model.safetensors").rename(head / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"the head .*pickles, which can run code and are not loaded"):
        locate(ModelConfig(model=str(model), speculative_config=drafting(head, "eagle3")))


def test_layers_that_the_model_lacks_are_refused(model: Path, tmp_path: Path) -> None:
    """When the model is there."""
    head = make_head(tmp_path, model, "eagle3")
    config = json.loads((head / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [2, 3, 4]
    (head / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="reads the inputs of layers 2, 3, 4, and LlamaModel has 4"):
        LLM(str(model), num_kv_blocks=60, speculative_config=drafting(head, "eagle3"), **OPTIONS)
