"""Heads for tiny checkpoints in the published layouts, and what such a head proposes, computed in plain torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

from corellm_testing.tiny_text import make_tiny_checkpoint

NORMS = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
UNDRAFTED = 3
"""Tokens at the beginning of the vocabulary that a head of EAGLE-3 cannot say here."""


def make_head(path: Path, model: Path, method: str, seed: int = 0, **more: Any) -> Path:
    """Write a random head for a model's checkpoint, and return its directory.

    Args:
        method: `eagle` or `eagle3`; the latter reads the inputs of the first two and the last layer.
        more: of its configuration.
    """
    text = AutoConfig.from_pretrained(model).get_text_config()
    width, vocab = text.hidden_size, text.vocab_size
    config: dict[str, Any] = {
        "model_type": "llama", "hidden_size": width, "vocab_size": vocab, "intermediate_size": 96,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "max_position_embeddings": 2048, "hidden_act": "silu", "tie_word_embeddings": False,
        "architectures": ["LlamaForCausalLM" if method == "eagle" else "LlamaForCausalLMEagle3"], **more,
    }  # fmt: skip
    inputs, layer = (width, "layers.0") if method == "eagle" else (2 * width, "midlayer")
    size = width // config["num_attention_heads"]
    keys, inner = config["num_key_value_heads"] * size, config["intermediate_size"]
    shapes = {
        "fc": (width, (2 if method == "eagle" else 3) * width),
        f"{layer}.self_attn.q_proj": (width, inputs),
        f"{layer}.self_attn.k_proj": (keys, inputs),
        f"{layer}.self_attn.v_proj": (keys, inputs),
        f"{layer}.self_attn.o_proj": (width, width),
        f"{layer}.mlp.gate_proj": (inner, width),
        f"{layer}.mlp.up_proj": (inner, width),
        f"{layer}.mlp.down_proj": (width, inner),
    }
    random = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random) * 1.4 / shape[-1] ** 0.5

    tensors = {f"{name}.weight": drawn(*shape) for name, shape in shapes.items()}
    norms = NORMS[-1:] if method == "eagle" else NORMS
    tensors |= {f"{layer}.{norm}.weight": 1 + 0.1 * torch.randn(width, generator=random) for norm in norms}
    if method == "eagle3":
        config |= {
            "draft_vocab_size": vocab - UNDRAFTED,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, text.num_hidden_layers - 1]},
        }
        tensors |= {
            "norm.weight": 1 + 0.1 * torch.randn(width, generator=random),
            "lm_head.weight": drawn(vocab - UNDRAFTED, width),
            "d2t": torch.full((vocab - UNDRAFTED,), UNDRAFTED),
            "t2d": torch.arange(vocab) >= UNDRAFTED,
        }
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file(tensors, path / "model.safetensors")
    return path


def make_agreeing(folder: Path, method: str) -> tuple[Path, Path]:
    """Return a model and a head that always says what the model says.

    The model's layers are identities, and its hidden state is the last token alone: what comes next is a table. EAGLE's
    head hands on the token that it is given; EAGLE-3's looks the next one up in its MLP.
    """
    width = 512
    model = make_tiny_checkpoint(folder / "model", hidden_size=width, intermediate_size=64, num_hidden_layers=3)
    file = model / "model.safetensors"
    weights = load_file(file)
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.zero_()
    vocab = len(weights["lm_head.weight"])
    assert vocab <= width
    weights["model.embed_tokens.weight"] = width**0.5 * torch.eye(width)[:vocab]
    weights["lm_head.weight"][:UNDRAFTED] = 0
    weights["lm_head.weight"][:, vocab:] = 0
    save_file(weights, file, {"format": "pt"})

    inner = {"intermediate_size": width} if method == "eagle3" else {}
    head = make_head(folder / "head", model, method, **inner)
    tensors = load_file(head / "model.safetensors")
    layer = "layers.0" if method == "eagle" else "midlayer"
    tensors["fc.weight"] = torch.eye(width, len(tensors["fc.weight"][0]))
    tensors[f"{layer}.self_attn.o_proj.weight"].zero_()
    tensors[f"{layer}.mlp.down_proj.weight"].zero_()
    for name in tensors:
        if name.endswith("norm.weight"):
            tensors[name] = torch.ones(width)
    if method == "eagle3":
        following = weights["lm_head.weight"].argmax(dim=0)[:vocab]
        tensors[f"{layer}.mlp.gate_proj.weight"] = torch.eye(width)
        tensors[f"{layer}.mlp.up_proj.weight"] = torch.eye(width)
        table = torch.eye(width)[:, following] - torch.eye(width)[:, :vocab]
        tensors[f"{layer}.mlp.down_proj.weight"][:, :vocab] = width**-0.5 * table
        tensors["lm_head.weight"] = weights["lm_head.weight"][UNDRAFTED:].clone()
    save_file(tensors, head / "model.safetensors")
    return model, head


class ReferenceHead:
    """A head in plain torch, without a cache: what it proposes behind a text.

    Args:
        head, model: checkpoints.
    """

    def __init__(self, head: Path, model: Path) -> None:
        self._config = json.loads((head / "config.json").read_text())
        self._weights = {name: tensor.float() for name, tensor in load_file(head / "model.safetensors").items()}
        self._model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self._is_eagle3 = "midlayer.hidden_norm.weight" in self._weights
        self._layer = "midlayer" if self._is_eagle3 else "layers.0"

    @torch.no_grad()
    def drafts(self, tokens: Sequence[int], count: int, first: int) -> list[int]:
        """Return the tokens that it says after a text, whose last token the model has not read.

        It reads from position `first` on.
        """
        output = self._model(torch.tensor([tokens[:-1]]), output_hidden_states=True)
        if self._is_eagle3:
            layers = self._config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
            rows = torch.cat([output.hidden_states[layer][0] for layer in layers], dim=-1)
            states = rows @ self._weights["fc.weight"].T
        else:
            states = output.hidden_states[-1][0]
        states, read, drafts = states[first:], list(tokens[first + 1 :]), list[int]()
        for _ in range(count):
            own = self._run(self._model.get_input_embeddings()(torch.tensor(read)), states)
            drafts.append(self._said(own[-1]))
            states, read = torch.cat([states, own[-1:]]), [*read, drafts[-1]]
        return drafts

    def _said(self, own: Tensor) -> int:
        if not self._is_eagle3:
            return int(self._model.lm_head(own).argmax())
        logits = self._weights["lm_head.weight"] @ self._norm(own, "norm")
        best = int(logits.argmax())
        return best + int(self._weights["d2t"][best])

    def _run(self, embeds: Tensor, states: Tensor) -> Tensor:
        if self._is_eagle3:
            normed = self._norm(states, "midlayer.hidden_norm")
            inputs = torch.cat([self._norm(embeds, "midlayer.input_layernorm"), normed], dim=-1)
            states = normed if self._config.get("norm_before_residual") else states
        else:
            inputs = states = torch.cat([embeds, states], dim=-1) @ self._weights["fc.weight"].T
        total = states + self._attention(inputs)
        normed = self._norm(total, f"{self._layer}.post_attention_layernorm")
        gate, up = (normed @ self._of_layer(f"mlp.{name}_proj").T for name in ("gate", "up"))
        return total + (functional.silu(gate) * up) @ self._of_layer("mlp.down_proj").T

    def _attention(self, inputs: Tensor) -> Tensor:
        size = self._config["hidden_size"] // self._config["num_attention_heads"]
        query, key, value = (
            (inputs @ self._of_layer(f"self_attn.{name}_proj").T).unflatten(-1, (-1, size)).transpose(0, 1)
            for name in ("q", "k", "v")
        )
        attended = functional.scaled_dot_product_attention(
            self._rotated(query), self._rotated(key), value, is_causal=True, enable_gqa=True
        )
        return attended.transpose(0, 1).flatten(1) @ self._of_layer("self_attn.o_proj").T

    def _rotated(self, heads: Tensor) -> Tensor:
        _, length, size = heads.shape
        frequencies = self._config["rope_theta"] ** (-torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(length), frequencies).repeat(1, 2)
        first, second = heads.chunk(2, dim=-1)
        return heads * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], self._weights[f"{name}.weight"], self._config["rms_norm_eps"])

    def _of_layer(self, name: str) -> Tensor:
        return self._weights[f"{self._layer}.{name}.weight"]
