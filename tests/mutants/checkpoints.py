"""Mistakes that show with another checkpoint than the tiny one: settings that are assumed."""

from __future__ import annotations

from tests.mutants.mutant import BLIP2, LLAVA, QWEN2

_VARIANT = "test_every_variant_equals_the_reference"

MUTANTS = (
    # --- what a checkpoint says ---------------------------------------------------------------------------------------
    LLAVA.edited(
        "the image token is a number",
        _VARIANT,
        "get_prompt_updates",
        old="        token = self.context.hf_config.image_token_id\n",
        new="        token = 4\n",
    ),
    BLIP2.edited(
        "an image has eight queries",
        _VARIANT,
        ("get_multimodal_embeddings", "get_prompt_updates"),
        old="or config.num_query_tokens)",
        new="or 8)",
    ),
    LLAVA.edited(
        "features are the last layer's but one",
        _VARIANT,
        ("get_multimodal_embeddings", "load_model"),
        old="        chosen = model.config.vision_feature_layer\n",
        new="        chosen = -2\n",
    ),
    QWEN2.edited(
        "four patches are a token",
        _VARIANT,
        ("get_multimodal_embeddings", "get_prompt_updates"),
        old="// self.context.hf_config.vision_config.spatial_merge_size**2",
        new="// 4",
    ),
)
