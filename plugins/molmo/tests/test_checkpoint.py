"""Molmo's checkpoints: none of their code runs, every published weight has its place, others are refused."""

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
from corellm_molmo.config import load_config
from corellm_molmo.model import MolmoModel, loaded_weights, weight_names
from corellm_molmo.tiny import make_tiny_checkpoint
from corellm_testing.items import make_image


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_tiny_checkpoint(tmp_path / "molmo")


def generate(path: Path, **options: Any) -> list[int]:
    request = {"prompt": "What?", "multi_modal_data": {"image": make_image(90, 70, 1)}}
    with LLM(str(path), dtype="float32", **options) as llm:
        params = SamplingParams(temperature=0, max_tokens=4, min_tokens=4)
        return list(llm.generate([request], params, use_tqdm=False)[0].outputs[0].token_ids)


@pytest.mark.parametrize("trust", [False, True])
def test_no_code_of_the_checkpoint_runs(path: Path, trust: bool) -> None:
    """With `trust_remote_code`, too: the modules that `auto_map` names are never imported."""
    marker = path / "ran"
    for name in ("config_molmo", "modeling_molmo", "preprocessing_molmo", "image_preprocessing_molmo"):
        (path / f"{name}.py").write_text(f"open({str(marker)!r}, 'w').close()\nraise RuntimeError('ran')\n")
    assert len(generate(path, trust_remote_code=trust)) == 4
    assert not marker.exists()


# --- weights --------------------------------------------------------------------------------------------------------

CONFIGS: dict[str, dict[str, Any]] = {
    "7B-D": {
        "attention_layer_norm": False, "embedding_size": 152064, "hidden_size": 3584, "intermediate_size": 37888,
        "layer_norm_eps": 1e-06, "norm_after": False, "num_attention_heads": 28, "num_hidden_layers": 28,
        "num_key_value_heads": 4, "qkv_bias": True, "rope_theta": 1000000.0, "vocab_size": 152064,
    },
    "7B-O": {
        "attention_layer_norm": True, "embedding_size": 100352, "hidden_size": 4096, "intermediate_size": 22016,
        "layer_norm_eps": 1e-06, "norm_after": True, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": None, "qkv_bias": False, "rope_theta": 500000.0, "vocab_size": 100278,
    },
}  # fmt: skip


def published(name: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a published checkpoint's weights: as in 7B-D's index, with 7B-O's two norms more."""
    config = CONFIGS[name]
    hidden, inner, rows = (config[key] for key in ("hidden_size", "intermediate_size", "embedding_size"))
    keys = hidden // config["num_attention_heads"] * (config["num_key_value_heads"] or config["num_attention_heads"])
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.embedding": (rows, hidden), "transformer.wte.new_embedding": (128, hidden),
        "transformer.ff_out.weight": (rows, hidden), "transformer.ln_f.weight": (hidden,),
        "vision_backbone.pad_embed": (2, 2048),
        "vision_backbone.image_projector.w1.weight": (inner // 2, 1024),
        "vision_backbone.image_projector.w2.weight": (hidden, inner // 2),
        "vision_backbone.image_projector.w3.weight": (inner // 2, 1024),
        "vision_backbone.image_vit.class_embedding": (1024,),
        "vision_backbone.image_vit.patch_embedding.weight": (1024, 588),
        "vision_backbone.image_vit.positional_embedding": (577, 1024),
        "vision_backbone.image_vit.pre_ln.weight": (1024,), "vision_backbone.image_vit.pre_ln.bias": (1024,),
        "vision_backbone.image_pooling_2d.wo.weight": (1024, 1024), "vision_backbone.image_pooling_2d.wo.bias": (1024,),
    }  # fmt: skip
    for part in ("wq", "wk", "wv"):
        shapes[f"vision_backbone.image_pooling_2d.{part}.weight"] = (1024, 2048)
        shapes[f"vision_backbone.image_pooling_2d.{part}.bias"] = (1024,)
    for i in range(23):
        block = f"vision_backbone.image_vit.transformer.resblocks.{i}"
        for part, shape in {
            "attention.wq": (1024, 1024), "attention.wk": (1024, 1024), "attention.wv": (1024, 1024),
            "attention.wo": (1024, 1024), "feed_forward.w1": (4096, 1024), "feed_forward.w2": (1024, 4096),
            "attention_norm": (1024,), "ffn_norm": (1024,),
        }.items():  # fmt: skip
            shapes |= {f"{block}.{part}.weight": shape, f"{block}.{part}.bias": shape[:1]}
    for i in range(config["num_hidden_layers"]):
        block = f"transformer.blocks.{i}"
        shapes |= {
            f"{block}.att_proj.weight": (hidden + 2 * keys, hidden), f"{block}.attn_out.weight": (hidden, hidden),
            f"{block}.ff_proj.weight": (inner, hidden), f"{block}.ff_out.weight": (hidden, inner // 2),
            f"{block}.attn_norm.weight": (hidden,), f"{block}.ff_norm.weight": (hidden,),
        }  # fmt: skip
        if name == "7B-D":
            shapes[f"{block}.att_proj.bias"] = (hidden + 2 * keys,)
        else:
            shapes |= {f"{block}.q_norm.weight": (hidden,), f"{block}.k_norm.weight": (hidden,)}
    return {f"model.{name}": shape for name, shape in shapes.items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_published_name_has_its_place(tmp_path: Path, name: str) -> None:
    """The published names and shapes are those of the model's parts, at the published size."""
    stated = {"architectures": ["MolmoForCausalLM"], "model_type": "molmo", "max_position_embeddings": 4096}
    (tmp_path / "config.json").write_text(json.dumps(stated | CONFIGS[name]))
    config = load_config(tmp_path)
    with torch.device("meta"):
        model = MolmoModel(config)
    places, names = loaded_weights(model), weight_names(config.model_type)
    for published_name, shape in published(name).items():
        parts = [places.pop(part) for part in names(published_name)]
        assert (sum(len(part) for part in parts), *parts[0].shape[1:]) == shape
    assert not places
    assert model.get_output_embeddings().weight.shape[0] == CONFIGS[name]["embedding_size"]


def rewrite(path: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(path / "model.safetensors")
    change(weights)
    save_file(weights, path / "model.safetensors")


_BLOCK = "model.transformer.blocks.0"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.pop(f"{_BLOCK}.ff_proj.weight"), r"lacks .*layers\.0\.mlp\.gate_proj"),
        (lambda w: w.pop("model.transformer.wte.new_embedding"), r"lacks .*embed_tokens.new_embedding"),
        (lambda w: w.pop("model.vision_backbone.pad_embed"), "lacks .*vision_backbone.pad_embed"),
        (lambda w: w.update({f"{_BLOCK}.q_norm.weight": torch.ones(64)}), r"no place for: .*self_attn\.q_norm"),
        (lambda w: w.update({f"{_BLOCK}.att_proj.bias": torch.ones(7)}), r"another shape .*att_proj\.bias \[7\]"),
        (lambda w: w.update({f"{_BLOCK}.att_proj.bias": torch.ones(4)}), r"another shape .*att_proj\.bias \[4\]"),
        (lambda w: w.clear(), r"no \*\.safetensors|lacks weights"),
    ],
)
def test_other_weights_are_refused(path: Path, change: Callable[[Any], Any], words: str) -> None:
    """No weight is missing, left over or of another shape."""
    rewrite(path, change)
    with pytest.raises(CheckpointError, match=words):
        generate(path)


def test_files_are_missing_or_broken(path: Path) -> None:
    """One cut short, then none."""
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        generate(path)
    file.unlink()
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors"):
        generate(path)


def test_the_last_layer_is_not_run(path: Path) -> None:
    """A layer of the tower behind those that are read changes nothing."""
    want = generate(path)
    name = "model.vision_backbone.image_vit.transformer.resblocks"
    rewrite(path, lambda w: [tensor.fill_(torch.nan) for key, tensor in w.items() if key.startswith(f"{name}.9.")])
    assert generate(path) == want
    rewrite(path, lambda w: [tensor.fill_(0.1) for key, tensor in w.items() if key.startswith(f"{name}.8.")])
    assert generate(path) != want


def test_dummy_weights(path: Path) -> None:
    """`load_format="dummy"` reads no weights, and gives the same model at every start."""
    real = generate(path)
    (path / "model.safetensors").unlink()
    assert generate(path, load_format="dummy") == generate(path, load_format="dummy") != real


# --- configuration --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"moe_num_experts": 64}, "moe_num_experts is 64: .*mixture of experts"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized"),
        ({"clip_qkv": 8.0}, "clip_qkv is 8.0"),
        ({"layer_norm_type": "default"}, "layer_norm_type is 'default'"),
        ({"attention_layer_norm": True}, "True, False, True, "),
        ({"hidden_size": None}, "lacks 'hidden_size'"),
    ],
)
def test_other_models_are_refused(path: Path, change: dict[str, Any], words: str) -> None:
    """Other models of the architecture's name, quantized ones and broken files."""
    file = path / "config.json"
    content = {**json.loads(file.read_text()), **change}
    file.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))
    with pytest.raises(CheckpointError, match=words):
        generate(path)
