"""What each kind of model needs beside the recipe, to be made tiny: a line or two.

Knows names of configurations, nothing of how they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Kind:
    """What differs from the recipe."""

    config: Mapping[str, Any] = field(default_factory=dict)
    """Of the model's configuration, nested as it is."""
    processor: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the processor."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of its image processor."""
    audio: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of its feature extractor."""
    processor_class: str | None = None
    image_processor: str | None = None
    feature_extractor: str | None = None
    """Where transformers' mappings name none."""
    tokens: Mapping[str, str] = field(default_factory=dict)
    """`{attribute of the tokenizer: special token}`."""
    token_ids: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    """`{attribute of the configuration: the token, or tokens, whose ids it is}`, where the processor's name differs."""
    more_tokens: tuple[str, ...] = ()
    """Special tokens without such an attribute."""


_GRID = [[56, 112], [112, 56], [112, 112]]
_PINPOINTS = {"image_grid_pinpoints": _GRID}
_LLAVA_NEXT = Kind(
    config={**_PINPOINTS, "vision_feature_layer": -1},
    processor={"num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"},
    parts={**_PINPOINTS, "size": {"shortest_edge": 56}},
)
_PIXELS = {"size": {"shortest_edge": 4 * 28**2, "longest_edge": 40 * 28**2}}


def _mrope(*section: int, factor: float = 1.0, **more: Any) -> dict[str, Any]:
    """M-RoPE of a text decoder whose default sections are not in its configuration."""
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": list(section)}
    return {"text_config": {"rope_parameters": {**rope, "partial_rotary_factor": factor}, **more}}


_OVIS = ("<IMG_START>", "<IMG_ATOM>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
_INTERN = Kind(
    processor={"image_seq_length": 4},
    config={"image_seq_length": 4, "vision_config": {"image_size": [56, 56], "patch_size": [14, 14]}},
    parts={"max_patches": 4, "size": {"height": 56, "width": 56}},
)

_OMNI_TOKENS = {
    "vision_start_token_id": "<vision_bos>",
    "vision_end_token_id": "<vision_eos>",
    "audio_start_token_id": "<audio_bos>",
    "audio_end_token_id": "<audio_eos>",
}

KINDS: Mapping[str, Kind] = {
    "AriaForConditionalGeneration": Kind(config={"text_config": {"max_position_embeddings": 4096}}),
    "AyaVisionForConditionalGeneration": Kind(
        processor={"img_size": 56, "patch_size": 14, "downsample_factor": 2},
        config={"downsample_factor": 2, "alignment_intermediate_size": 128},
        parts={"max_patches": 4},
    ),
    "CohereCompassForConditionalGeneration": Kind(
        config={
            "text_config": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10_000.0}}}
        }
    ),
    "Cosmos3OmniForConditionalGeneration": Kind(
        processor_class="Qwen3VLProcessor", image_processor="Qwen2VLImageProcessorPil"
    ),
    "Gemma3ForConditionalGeneration": Kind(
        processor={"image_seq_length": 4},
        config={"mm_tokens_per_image": 4},
        tokens={"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"},
    ),
    "GlmAsrForConditionalGeneration": Kind(audio={"feature_size": 128}),
    "Glm46VForConditionalGeneration": Kind(config=_mrope(2, 3, 3)),
    "Glm4vForConditionalGeneration": Kind(config=_mrope(2, 3, 3)),
    "Glm4vMoeForConditionalGeneration": Kind(
        config=_mrope(1, 1, 2, factor=0.5), image_processor="Glm4vImageProcessorPil"
    ),
    "GlmOcrForConditionalGeneration": Kind(
        config=_mrope(2, 3, 3), processor_class="Glm46VProcessor", image_processor="Glm46VImageProcessorPil"
    ),
    "GotOcr2ForConditionalGeneration": Kind(
        more_tokens=("<imgpad>", "<img>", "</img>"),
        config={
            "vision_config": {"image_size": 256, "patch_size": 4, "output_channels": 64},
            "text_config": {"max_position_embeddings": 4096},
        },
        parts={"size": {"height": 256, "width": 256}},
    ),
    "LlavaNextForConditionalGeneration": _LLAVA_NEXT,
    "LlavaNextVideoForConditionalGeneration": _LLAVA_NEXT,
    "LlavaOnevisionForConditionalGeneration": Kind(
        config={**_PINPOINTS, "vision_feature_layer": -1, "vision_aspect_ratio": "anyres_max_4"},
        processor={"num_image_tokens": 16, "vision_feature_select_strategy": "full"},
        parts={**_PINPOINTS, "size": {"height": 56, "width": 56}},
    ),
    "InternVLForConditionalGeneration": _INTERN,
    "Idefics3ForConditionalGeneration": Kind(
        processor={"image_seq_len": 4},
        parts={"size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 56}},
        config={"scale_factor": 2, "pad_token_id": 2},
    ),
    "PaddleOCRVLForConditionalGeneration": Kind(config=_mrope(2, 3, 3)),
    "Ernie4_5_VLMoeForConditionalGeneration": Kind(config=_mrope(3, 3, 2)),
    "FunAsrNanoForConditionalGeneration": Kind(config={"adaptor_config": {"intermediate_size": 16}}),
    "Ovis2ForConditionalGeneration": Kind(
        processor={"image_seq_length": 16},
        more_tokens=_OVIS,
        token_ids={"image_token_id": "<IMG_ATOM>", "visual_indicator_token_ids": (_OVIS[0], *_OVIS[2:])},
    ),
    "Mistral3ForConditionalGeneration": Kind(processor={"image_token": "[IMG]"}),
    "PaliGemmaForConditionalGeneration": Kind(parts={"image_seq_length": 16}),
    "Qwen2_5OmniThinkerForConditionalGeneration": Kind(
        processor_class="Qwen2_5OmniProcessor",
        image_processor="Qwen2VLImageProcessorPil",
        feature_extractor="WhisperFeatureExtractor",
        config=_mrope(2, 3, 3),
        token_ids=_OMNI_TOKENS,
        audio={"feature_size": 128},
    ),
    "Qwen3OmniMoeThinkerForConditionalGeneration": Kind(
        processor_class="Qwen3OmniMoeProcessor",
        image_processor="Qwen2VLImageProcessorPil",
        feature_extractor="WhisperFeatureExtractor",
        config=_mrope(2, 3, 3),
        token_ids=_OMNI_TOKENS,
        audio={"feature_size": 128},
    ),
    "Qwen3VLMoeForConditionalGeneration": Kind(image_processor="Qwen2VLImageProcessorPil"),
    "VipLlavaForConditionalGeneration": Kind(
        config={"vision_feature_layers": [-1, -2]},
        processor={"num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"},
    ),
}
"""`{architecture: what it needs}`; most need nothing."""
