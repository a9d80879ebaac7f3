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
    """Arguments of its image processor or feature extractor."""
    processor_class: str | None = None
    image_processor: str | None = None
    """Where transformers' mappings name none."""
    tokens: Mapping[str, str] = field(default_factory=dict)
    """`{attribute of the tokenizer: special token}`."""
    more_tokens: tuple[str, ...] = ()
    """Special tokens without such an attribute."""


_GRID = [[56, 112], [112, 56], [112, 112]]
_LLAVA_NEXT = {"image_grid_pinpoints": _GRID}
_MROPE = {"rope_parameters": {"mrope_section": [2, 3, 3]}}

KINDS: Mapping[str, Kind] = {
    "LlavaNextForConditionalGeneration": Kind(
        config={**_LLAVA_NEXT, "vision_feature_layer": -1},
        processor={"num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"},
        parts={**_LLAVA_NEXT, "size": {"shortest_edge": 56}},
    ),
    "LlavaNextVideoForConditionalGeneration": Kind(
        config={**_LLAVA_NEXT, "vision_feature_layer": -1},
        processor={"num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"},
        parts={**_LLAVA_NEXT, "size": {"shortest_edge": 56}},
    ),
    "Gemma3ForConditionalGeneration": Kind(
        processor={"image_seq_length": 4},
        config={"mm_tokens_per_image": 4},
        tokens={"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"},
    ),
    "Glm4vMoeForConditionalGeneration": Kind(image_processor="Glm4vImageProcessorPil"),
    "GlmOcrForConditionalGeneration": Kind(processor_class="Glm46VProcessor", image_processor="Glm46VImageProcessorPil"),
    "Qwen3VLMoeForConditionalGeneration": Kind(image_processor="Qwen2VLImageProcessorPil"),
    "Mistral3ForConditionalGeneration": Kind(processor={"image_token": "[IMG]"}),
}
"""`{architecture: what it needs}`; most need nothing."""
