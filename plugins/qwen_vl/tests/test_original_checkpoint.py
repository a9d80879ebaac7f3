"""The original Qwen-VL's checkpoints: none of their code runs, nothing is unpickled, every weight is used."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from corellm import LLM, SamplingParams
from corellm.errors import CheckpointError, ConfigError
from corellm_qwen_vl.original.convert import convert, main
from corellm_qwen_vl.original.tiny import make_tiny_checkpoint


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_tiny_checkpoint(tmp_path / "qwen", n_queries=16)


def generate(path: Path, **options: Any) -> list[int]:
    with LLM(str(path), dtype="float32", **options) as llm:
        params = SamplingParams(temperature=0, max_tokens=4, min_tokens=4)
        return llm.generate("What shape is in the image?", params, use_tqdm=False)[0].outputs[0].token_ids


def edit(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize("trust", [False, True])
def test_no_code_of_the_checkpoint_runs(path: Path, trust: bool) -> None:
    """With `trust_remote_code`, too: the modules that `auto_map` names are never imported."""
    marker = path / "ran"
    for name in ("configuration_qwen", "modeling_qwen", "tokenization_qwen", "processing_qwen"):
        (path / f"{name}.py").write_text(f"open({str(marker)!r}, 'w').close()\nraise RuntimeError('ran')\n")
    assert len(generate(path, trust_remote_code=trust)) == 4
    assert not marker.exists()


# --- weights --------------------------------------------------------------------------------------------------------


def rewrite(path: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(path / "model.safetensors")
    change(weights)
    save_file(weights, path / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.pop("transformer.h.1.mlp.w2.weight"), r"lacks .*layers\.1\.mlp\.gate_proj"),
        (lambda w: w.pop("transformer.visual.attn_pool.query"), "lacks .*attn_pool.query"),
        (lambda w: w.update({"transformer.h.0.attn.extra.weight": torch.ones(3)}), "no place for: .*attn.extra"),
        (lambda w: w.update({"lm_head.weight": torch.ones(3, 3)}), r"another shape .*lm_head.weight \[3, 3\]"),
        (lambda w: w.update({"transformer.h.0.attn.c_attn.bias": torch.ones(6)}), r"another shape .*bias \[6\]"),
        (lambda w: w.update({"transformer.h.0.attn.c_attn.bias": torch.ones(2)}), r"another shape .*bias \[2\]"),
    ],
)
def test_every_weight_has_its_place(path: Path, change: Callable[[Any], Any], words: str) -> None:
    """No weight is missing, left over or of another shape."""
    rewrite(path, change)
    with pytest.raises(CheckpointError, match=words):
        generate(path)


def test_constants_of_older_checkpoints(path: Path) -> None:
    """Constants that are computed here may be in the file."""
    want = generate(path)
    rewrite(path, lambda w: w.update({"transformer.h.0.attn.masked_bias": torch.ones(())}))
    assert generate(path) == want


def test_files_are_missing_or_broken(tmp_path: Path) -> None:
    """A shard that the index names and the folder lacks, one cut short, an index that is none."""
    path = make_tiny_checkpoint(tmp_path, n_queries=16, num_shards=2)
    second = path / "model-00002-of-00002.safetensors"
    whole = second.read_bytes()
    second.write_bytes(whole[:-1000])
    with pytest.raises(CheckpointError, match=r"00002-of-00002.*cannot be read"):
        generate(path)
    second.unlink()
    with pytest.raises(CheckpointError, match="lacks model-00002-of-00002"):
        generate(path)
    (path / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(CheckpointError, match="a list"):
        generate(path)


def test_published_pickles_are_converted(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The published `*.bin` are refused with the command that converts them; converted, they give the same tokens."""
    want = generate(path)
    weights = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    for i in (1, 2):
        half = {name: weights[name] for name in sorted(weights)[i - 1 :: 2]}
        torch.save(half, path / f"pytorch_model-0000{i}-of-00002.bin")
    with pytest.raises(CheckpointError, match=r"pickles.*python -m corellm_qwen_vl\.original\.convert"):
        generate(path)
    assert main([str(path)]) == 0
    assert capsys.readouterr().out.split() == [str(path / f"model-0000{i}-of-00002.safetensors") for i in (1, 2)]
    assert generate(path) == want


def test_dummy_weights(path: Path) -> None:
    """`load_format="dummy"` reads no weights, and gives the same model at every start."""
    real = generate(path)
    (path / "model.safetensors").unlink()
    assert generate(path, load_format="dummy") == generate(path, load_format="dummy") != real


class Hostile:
    """Makes a folder when unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.marker,)


@pytest.mark.parametrize("form", ["torch", "pickle"])
def test_converting_runs_nothing(tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A pickle that would run code is refused."""
    bad, marker = {"x": Hostile(tmp_path / "ran")}, tmp_path / "ran"
    with (tmp_path / "pytorch_model.bin").open("wb") as file:
        torch.save(bad, file) if form == "torch" else pickle.dump(bad, file)
    assert main([str(tmp_path)]) == 1
    assert "not a file of weights" in capsys.readouterr().err
    assert not marker.exists()
    assert not list(tmp_path.glob("*.safetensors"))


def test_nothing_to_convert(tmp_path: Path) -> None:
    """A directory without `*.bin` is an error."""
    with pytest.raises(CheckpointError, match=r"no \*\.bin"):
        convert(tmp_path)


# --- configuration --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.pop("visual"), "Qwen without vision"),
        (lambda c: c["visual"].pop("width"), "'visual' lacks width"),
        (lambda c: c.pop("layer_norm_epsilon"), "lacks 'layer_norm_epsilon'"),
        (lambda c: c.update(quantization_config={"quant_method": "gptq"}), "quantized .gptq."),
        (lambda c: c.update(rotary_pct=0.5), "rotary_pct is 0.5"),
        (lambda c: c.update(no_bias=False), "no_bias is False"),
        (lambda c: c["visual"].update(image_start_id=5), "token 5, by qwen.tiktoken it is 613"),
    ],
)
def test_other_models_are_refused(path: Path, change: Callable[[Any], Any], words: str) -> None:
    """Other models of the architecture's name, quantized ones and mixed files."""
    edit(path / "config.json", change)
    with pytest.raises(CheckpointError, match=words):
        generate(path)


def test_generation_settings_may_be_absent_but_not_broken(path: Path) -> None:
    """Without them the checkpoint is taken for a chat model."""
    want = generate(path)
    (path / "generation_config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match=r"generation_config\.json: "):
        generate(path)
    (path / "generation_config.json").unlink()
    assert generate(path) == want


def test_longer_than_the_family_can(path: Path) -> None:
    """Refused: beyond `seq_length` keys would depend on the length of the prompt."""
    with pytest.raises(ConfigError, match="2048"):
        generate(path, max_model_len=4096)
