"""Greedy outputs of a dozen kinds of models are transformers' own, whatever the chunks; they cover the adapter's ways.

Tiles, M-RoPE, deepstack, audio, pooled and interpolated features, tokens around an item.
"""

from __future__ import annotations

from types import new_class

from corellm_transformers.contract import AnyModel
from corellm_transformers.contract import (
    TestLlavaNextForConditionalGeneration as TestLlavaNextForConditionalGeneration,
)

ARCHITECTURES = (
    "AyaVisionForConditionalGeneration",
    "Cosmos3OmniForConditionalGeneration",
    "DeepseekVLForConditionalGeneration",
    "GlmAsrForConditionalGeneration",
    "JanusForConditionalGeneration",
    "LightOnOcrForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration",
    "Ovis2ForConditionalGeneration",
    "PaddleOCRVLForConditionalGeneration",
    "Qwen2_5OmniThinkerForConditionalGeneration",
    "VideoLlama3ForConditionalGeneration",
    "VideoLlavaForConditionalGeneration",
    "VipLlavaForConditionalGeneration",
)

for _name in ARCHITECTURES:
    globals()[f"Test{_name}"] = new_class(
        f"Test{_name}", (AnyModel,), exec_body=lambda body, name=_name: body.update(architecture=name)
    )
