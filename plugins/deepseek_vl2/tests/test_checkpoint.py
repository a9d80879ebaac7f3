"""Files of a checkpoint: weights in one file or many, none missing, left over or misshapen; no code of theirs runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from corellm import LLM, SamplingParams
from corellm.errors import CheckpointError
from corellm_deepseek_vl2.tiny import make_tiny_checkpoint


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_tiny_checkpoint(tmp_path)


def generate(path: Path, **options: Any) -> list[int]:
    with LLM(str(path), dtype="float32", **options) as llm:
        params = SamplingParams(temperature=0, max_tokens=6, min_tokens=6)
        return list(llm.generate("What?", params, use_tqdm=False)[0].outputs[0].token_ids)


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    file = path / "config.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.pop("image_newline"), "lacks .*: image_newline"),
        (lambda w: w.pop("language.model.layers.1.mlp.experts.3.up_proj.weight"), r"lacks .*experts\.3\.up_proj"),
        (lambda w: w.update({"vision.extra": torch.ones(3)}), r"no place for: vision\.extra"),
        (
            lambda w: w.update({"language.model.layers.1.mlp.experts.6.up_proj.weight": torch.ones(32, 64)}),
            r"no place for: .*experts\.6\.up_proj",
        ),
        (lambda w: w.update({"language.lm_head.weight": torch.ones(3, 3)}), r"another shape .*lm_head.weight \[3, 3\]"),
    ],
)
def test_every_weight_has_its_place(path: Path, change: Callable[[Any], Any], words: str) -> None:
    """No weight is missing, left over or of another shape."""
    weights = load_file(path / "model.safetensors")
    change(weights)
    save_file(weights, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=words):
        generate(path)


def test_many_files(path: Path) -> None:
    """Weights in several files by an index, as published; files that are missing or cut short are named."""
    want = generate(path)
    weights = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"safetensors"):
        generate(path)
    names = [f"model-0000{i}-of-000002.safetensors" for i in (1, 2)]
    weight_map = {name: names[i % 2] for i, name in enumerate(sorted(weights))}
    for file in names:
        save_file({name: weights[name] for name in weights if weight_map[name] == file}, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert generate(path) == want
    whole = (path / names[1]).read_bytes()
    (path / names[1]).write_bytes(whole[:-1000])
    with pytest.raises(CheckpointError, match=names[1]):
        generate(path)
    (path / names[1]).unlink()
    with pytest.raises(CheckpointError, match=names[1]):
        generate(path)


def test_dummy_weights(path: Path) -> None:
    """`load_format="dummy"` reads no weights, and gives the same model at every start."""
    real = generate(path)
    (path / "model.safetensors").unlink()
    assert generate(path, load_format="dummy") == generate(path, load_format="dummy") != real


def test_no_code_of_the_checkpoint_runs(path: Path) -> None:
    """Modules that `auto_map` names are not imported, whether trusted or not."""
    want = generate(path)
    edit(path, lambda c: c.update(auto_map={"AutoConfig": "modeling.Config", "AutoModelForCausalLM": "modeling.Model"}))
    edit(path, lambda c: c["language_config"].update(auto_map={"AutoConfig": "modeling.Config"}))
    (path / "modeling.py").write_text(f"open({str(path / 'ran')!r}, 'w')\n")
    assert generate(path) == generate(path, trust_remote_code=True) == want
    assert not (path / "ran").exists()


def test_without_a_processors_file(path: Path) -> None:
    """Its settings are those of `config.json` and the published defaults."""
    prompt = {"prompt": "<image>", "multi_modal_data": {"image": torch.zeros(3, 90, 50, dtype=torch.uint8)}}
    found = []
    for _ in range(2):
        with LLM(str(path), dtype="float32") as llm:
            found.append(llm.engine.input_processor.process(prompt).token_ids)
        (path / "processor_config.json").unlink(missing_ok=True)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.pop("vision_config"), "no 'vision_config' section"),
        (lambda c: c["language_config"].update(rope_scaling={"type": "yarn"}), "rope_scaling of language_config is"),
        (lambda c: c["language_config"].update(topk_method="noaux_tc"), "topk_method 'noaux_tc' and scoring_func"),
        (lambda c: c["language_config"].pop("n_shared_experts"), "lacks n_shared_experts"),
        (lambda c: c["vision_config"].update(class_token=True), "class_token of vision_config is True"),
        (lambda c: c.update(candidate_resolutions=[[72, 50]]), r"\[72, 50\]; each must be .* multiples of 72"),
        (lambda c: c.update(candidate_resolutions=[]), "no entry"),
    ],
)
def test_other_models_are_refused(path: Path, change: Callable[[Any], Any], words: str) -> None:
    """Settings that no published checkpoint has, and files that lack a part."""
    edit(path, change)
    with pytest.raises(CheckpointError, match=words):
        generate(path)


def test_overrides(path: Path) -> None:
    """`hf_overrides` reach the text decoder's configuration."""
    with LLM(str(path), dtype="float32", hf_overrides={"text_config": {"max_position_embeddings": 512}}) as llm:
        assert llm.engine.max_model_len == 512
