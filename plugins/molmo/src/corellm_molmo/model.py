"""The model: the vision tower beside transformers' Qwen2 or OLMo 2, and where the checkpoint's weights belong in it.

Reads safetensors only, in one file or many. Every weight of the model is in the checkpoint, and the reverse.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

from corellm.hookspecs import LoadConfig
from corellm.modelling import check_weights, read_weights
from corellm_molmo.vision import VisionBackbone

_EMBEDDINGS = ("model.transformer.wte.embedding", "model.transformer.wte.new_embedding")
_PREFIXES = {
    "model.vision_backbone.": "vision_backbone.",
    "model.transformer.ln_f.": "language_model.model.norm.",
    "model.transformer.ff_out.": "language_model.lm_head.",
}
_LAYER = re.compile(r"model\.transformer\.blocks\.(\d+)\.(.+)\.(weight|bias)")
_IN_LAYER = {
    "att_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attn_out": ("self_attn.o_proj",),
    "q_norm": ("self_attn.q_norm",),
    "k_norm": ("self_attn.k_norm",),
    "ff_proj": ("mlp.up_proj", "mlp.gate_proj"),  # the second half goes through SiLU
    "ff_out": ("mlp.down_proj",),
}
_NORMS = {
    "qwen2": {"attn_norm": ("input_layernorm",), "ff_norm": ("post_attention_layernorm",)},
    "olmo2": {"attn_norm": ("post_attention_layernorm",), "ff_norm": ("post_feedforward_layernorm",)},
}


class MolmoModel(nn.Module):
    """Vision tower and text decoder.

    Args:
        config: the result of `load_config`.
    """

    def __init__(self, config: Any) -> None:
        from transformers import AutoModelForCausalLM

        super().__init__()
        self.vision_backbone = VisionBackbone(config.vision, config.intermediate_size, config.hidden_size)
        self.language_model = AutoModelForCausalLM.from_config(config)
        self.language_model.model.embed_tokens = nn.Embedding(config.num_embeddings, config.hidden_size)

    def get_decoder(self) -> nn.Module:
        """The text decoder without its output layer."""
        decoder: nn.Module = self.language_model.model
        return decoder

    def get_input_embeddings(self) -> nn.Module:
        """Of text tokens."""
        embeddings: nn.Module = self.language_model.model.embed_tokens
        return embeddings

    def get_output_embeddings(self) -> nn.Module:
        """Hidden states to logits; fewer than there are token ids, as images' tokens have none."""
        head: nn.Module = self.language_model.lm_head
        return head


def load_model(config: Any, load_config: LoadConfig) -> MolmoModel:
    """Make the model and load its weights; with `load_format="dummy"` they stay random.

    Raises:
        CheckpointError: a file is absent or broken, or a weight is missing, misshapen or has no place.
    """
    if load_config.load_format == "dummy":
        with load_config.device:
            model = MolmoModel(config).to(load_config.dtype)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.02)
    else:
        with torch.device("meta"):
            model = MolmoModel(config)
        decoder = model.language_model.model
        decoder.rotary_emb = type(decoder.rotary_emb)(config)  # its frequencies are computed, not loaded
        weights = {
            name: tensor.to(load_config.device, load_config.dtype)
            for name, tensor in read_weights(load_config.model_path)
        }
        state = place_weights(weights, config)
        check_weights(load_config.model_path, model.state_dict(), state)
        model.load_state_dict(state, assign=True)
    model.language_model.model.config._attn_implementation = load_config.attn_implementation
    return model.to(load_config.device).eval()


def weight_names(name: str, decoder: str) -> tuple[str, ...]:
    """Return the names here of a checkpoint's weight, which is split among them: its own if it has no place.

    Args:
        name: in the checkpoint.
        decoder: the configuration's `model_type`.
    """
    if name in _EMBEDDINGS:
        return ("language_model.model.embed_tokens.weight",)
    match = _LAYER.fullmatch(name)
    parts = _IN_LAYER | _NORMS[decoder]
    if match is not None and match[2] in parts:
        return tuple(f"language_model.model.layers.{match[1]}.{part}.{match[3]}" for part in parts[match[2]])
    for prefix, ours in _PREFIXES.items():
        if name.startswith(prefix):
            return (ours + name.removeprefix(prefix),)
    return (name,)


def place_weights(weights: dict[str, Tensor], config: Any) -> dict[str, Tensor]:
    """Return weights by their names here: joined, split or as they are. A part that is absent leaves another shape."""
    embeddings = [weights.pop(name) for name in _EMBEDDINGS if name in weights]
    placed = {"language_model.model.embed_tokens.weight": torch.cat(embeddings)} if embeddings else {}
    group = config.num_attention_heads // config.num_key_value_heads
    for name, tensor in weights.items():
        targets = weight_names(name, config.model_type)
        shares = [group, 1, 1] if len(targets) == 3 else [1] * len(targets)  # query, key and value, or halves
        share = len(tensor) // sum(shares) if tensor.ndim else 0
        sizes = [share * part for part in shares]
        whole = len(targets) == 1 or sum(sizes) != len(tensor)
        placed |= zip(targets, [tensor] if whole else torch.split(tensor, sizes), strict=False)
    return placed
