"""Greedy outputs of a dozen kinds of models are transformers' own, whatever the chunks; they cover the adapter's ways.

Tiles, M-RoPE of three and four axes, rows for several layers, masks, audio alone and beside images, a decoder that
merges items itself, a part that writes text, tokens around a prompt, one item per prompt, indicator tokens.
"""

from __future__ import annotations

from types import new_class

from corellm_transformers.contract import AnyModel
from corellm_transformers.contract import (
    TestLlavaNextForConditionalGeneration as TestLlavaNextForConditionalGeneration,
)

ARCHITECTURES = (
    "ChameleonForConditionalGeneration",
    "Cosmos3OmniForConditionalGeneration",
    "Emu3ForConditionalGeneration",
    "Ernie4_5_VLMoeForConditionalGeneration",
    "GlmAsrForConditionalGeneration",
    "Granite4VisionForConditionalGeneration",
    "HunYuanVLForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "Ovis2ForConditionalGeneration",
    "Phi4MultimodalForCausalLM",
    "Qwen2_5OmniForConditionalGeneration",
)

for _name in ARCHITECTURES:
    globals()[f"Test{_name}"] = new_class(
        f"Test{_name}", (AnyModel,), exec_body=lambda body, name=_name: body.update(architecture=name)
    )
