"""Parts of plain forward passes, beside torch's and transformers'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from corellm_testing import PlainModel, causal, generate_plain, rotated


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(5, 8, generator=torch.Generator().manual_seed(0))


def test_layers_are_torchs(tmp_path: Path, x: torch.Tensor) -> None:
    """Layers have the weights of all files, in float32; a linear layer may have no bias."""
    layers = {"first": nn.Linear(8, 4), "bare": nn.Linear(8, 4, bias=False), "norm": nn.LayerNorm(8, eps=1e-3)}
    for name, layer in layers.items():
        for parameter in layer.parameters():
            nn.init.normal_(parameter)
        layer.bfloat16()
        save_file({f"{name}.{part}": t for part, t in layer.state_dict().items()}, tmp_path / f"{name}.safetensors")
        layer.float()
    (tmp_path / "config.json").write_text(json.dumps({"size": 8}))
    model = PlainModel(tmp_path)
    assert model.config == {"size": 8}
    with torch.no_grad():
        for name in ("first", "bare"):
            torch.testing.assert_close(model.linear(x, name), layers[name](x))
        torch.testing.assert_close(model.layer_norm(x, "norm", 1e-3), layers["norm"](x))
        wanted = nn.functional.rms_norm(x, (8,), model.weights["norm.weight"], eps=1e-3)
    torch.testing.assert_close(model.rms_norm(x, "norm", 1e-3), wanted)
    model.epsilon = 1e-3
    torch.testing.assert_close(model.rms_norm(x, "norm"), wanted)


def test_attention_is_torchs(x: torch.Tensor) -> None:
    """Causal, and at transformers' rotary positions."""
    wanted = nn.functional.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True)[0]
    torch.testing.assert_close(causal(x @ x.T / 8**0.5) @ x, wanted)
    config = LlamaConfig(
        hidden_size=8, num_attention_heads=1, rope_parameters={"rope_type": "default", "rope_theta": 500}
    )
    cos, sin = LlamaRotaryEmbedding(config)(x, torch.arange(5)[None])
    turned, _ = apply_rotary_pos_emb(x[None, None], x[None, None], cos, sin)
    torch.testing.assert_close(torch.cat(rotated(*x.chunk(2, -1), base=500), -1), turned[0, 0])


def test_the_likeliest_tokens_but_some() -> None:
    """Each after those before it, with its log-probability among all tokens."""

    def next_logits(tokens: list[int]) -> torch.Tensor:
        return torch.tensor([0.0, 5.0, 2.0, 1.0]) if not tokens else torch.tensor([0.0, 5.0, 0.0, tokens[-1]])

    tokens, logprobs = generate_plain(next_logits, 2, never=[1])
    assert tokens == [2, 3]
    assert logprobs == pytest.approx([next_logits(list(b)).log_softmax(-1)[t].item() for b, t in (((), 2), ((2,), 3))])
