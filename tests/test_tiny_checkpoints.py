"""Parts of tiny checkpoints: what is written under published names, and the settings of small decoders."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from corellm.tiny_checkpoints import decoder_settings, train_tokenizer, with_biases, write_weights

SHAPES = with_biases({"norm": (8,), "layers.0.proj": (6, 400)}) | {"embed": (300, 8), "embed_scale": (300,)}


def test_weights_of_several_files_are_those_of_one(tmp_path: Path) -> None:
    """The same for a seed, in another order of names, too; the index names each weight's file."""
    write_weights(tmp_path, SHAPES, 3)
    (tmp_path / "shards").mkdir()
    write_weights(tmp_path / "shards", dict(reversed(SHAPES.items())), 3, num_shards=2)
    whole = load_file(tmp_path / "model.safetensors")
    index = json.loads((tmp_path / "shards" / "model.safetensors.index.json").read_text())
    parts = {name: load_file(tmp_path / "shards" / file)[name] for name, file in index["weight_map"].items()}
    assert len(set(index["weight_map"].values())) == 2
    assert parts.keys() == whole.keys() == {*SHAPES}
    assert all(torch.equal(parts[name], whole[name]) for name in whole)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in whole.values())


def test_how_weights_are_spread(tmp_path: Path) -> None:
    """Norms about one, biases about nothing, matrices by their inputs; the first pattern that fits counts."""
    write_weights(tmp_path, SHAPES, 0, {"embed": 3.0, "embed*": lambda noise: 7 + 0 * noise})
    weights = load_file(tmp_path / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == SHAPES
    assert (weights["norm.weight"] - 1).abs().max() < 0.5
    assert weights["layers.0.proj.bias"].abs().max() < 0.5
    assert 0.06 < weights["layers.0.proj.weight"].std() < 0.08  # 1.4 / sqrt(400)
    assert 2.8 < weights["embed"].std() < 3.2
    assert bool((weights["embed_scale"] == 7).all())


def test_settings_of_a_decoder() -> None:
    """What is stated goes before the usual, the tokenizer's tokens among it; a tokenizer may have attributes."""
    tokenizer = train_tokenizer(["<image>"], bos="<s>", pad="<pad>", extra_special_tokens={"image_token": "<image>"})
    assert tokenizer.image_token_id == tokenizer.convert_tokens_to_ids("<image>")
    settings = decoder_settings(tokenizer, 32, 3, bos_token_id=None, head_dim=8)
    assert settings == {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 8,
        "vocab_size": len(tokenizer), "max_position_embeddings": 1024, "bos_token_id": None,
        "eos_token_id": tokenizer.convert_tokens_to_ids("</s>"), "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
