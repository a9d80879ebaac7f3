"""The model: the vision tower beside transformers' Qwen2, and where each of the checkpoint's weights belongs in it.

Reads safetensors only, in one file or many; reads no pickle. Every weight of the model is in the checkpoint, and the
reverse.
"""

from __future__ import annotations

import re
from typing import Any

from corellm.hookspecs import LoadConfig
from corellm.modelling import ComposedModel, load_published, renamed
from corellm_qwen_vl.original.vision import VisionTransformer

_IN_LAYER = {
    "ln_1": ("input_layernorm",),
    "attn.c_attn": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attn.c_proj": ("self_attn.o_proj",),
    "ln_2": ("post_attention_layernorm",),
    "mlp.w1": ("mlp.up_proj",),
    "mlp.w2": ("mlp.gate_proj",),  # the one that goes through SiLU
    "mlp.c_proj": ("mlp.down_proj",),
}
_NAMES = {
    r".*\.(masked_bias|rotary_emb\.inv_freq)$": (),  # constants in older checkpoints, computed here
    **{
        rf"transformer\.h\.(\d+)\.{re.escape(part)}\.": [rf"language_model.model.layers.\1.{own}." for own in ours]
        for part, ours in _IN_LAYER.items()
    },
    r"transformer\.visual\.": "visual.",
    r"transformer\.wte\.": "language_model.model.embed_tokens.",
    r"transformer\.ln_f\.": "language_model.model.norm.",
    r"lm_head\.": "language_model.lm_head.",
}
_ADVICE = "those that are published as pickles: python -m corellm_qwen_vl.original.convert DIRECTORY"


class QwenVLModel(ComposedModel):
    """Vision tower and text decoder.

    Args:
        config: the result of `load_config`.
    """

    def __init__(self, config: Any) -> None:
        from transformers import Qwen2ForCausalLM

        super().__init__()
        self.visual = VisionTransformer(config.visual)
        self.language_model = Qwen2ForCausalLM(config)
        self.generation_config = self.language_model.generation_config


def load_model(config: Any, load_config: LoadConfig) -> QwenVLModel:
    """Make the model and load its weights; with `load_format="dummy"` they stay random.

    Raises:
        CheckpointError: a file is absent or broken, or a weight is missing, misshapen or has no place.
    """
    return load_published(
        lambda: QwenVLModel(config).to(load_config.dtype), load_config, names=renamed(_NAMES), advice=_ADVICE
    )
