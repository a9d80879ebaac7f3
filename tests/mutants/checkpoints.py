"""Mistakes that show with another checkpoint than the tiny one: settings that are assumed, state of another model."""

from __future__ import annotations

from tests.mutants.mutant import BLIP2, LLAVA, QWEN2

_APART = "test_models_are_kept_apart"
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
        "get_multimodal_embeddings",
        old='model.get_image_features(mm_kwargs["pixel_values"])',
        new='model.get_image_features(mm_kwargs["pixel_values"], vision_feature_layer=-2)',
    ),
    QWEN2.edited(
        "four patches are a token",
        _VARIANT,
        ("get_multimodal_embeddings", "get_prompt_updates"),
        old="// self.context.hf_config.vision_config.spatial_merge_size**2",
        new="// 4",
    ),
    # --- another model in the process ---------------------------------------------------------------------------------
    LLAVA.edited(
        "the model is kept in the class",
        _APART,
        "get_multimodal_embeddings",
        old="        features: Sequence[Tensor] = model",
        new='        Llava.model = model = getattr(Llava, "model", model)\n        features: Sequence[Tensor] = model',
    ),
    LLAVA.edited(
        "the class has the context of the last model",
        _APART,
        "get_prompt_updates",
        old="        self.context = context\n",
        new="        Llava.context = context\n",
    ),
    LLAVA.edited(
        "the module keeps the first model's image token",
        _APART,
        "get_prompt_updates",
        old="        token = self.context.hf_config.image_token_id\n",
        new='        token = globals().setdefault("_TOKEN", self.context.hf_config.image_token_id)\n',
    ),
    LLAVA.edited(
        "features are remembered by their sum, for all models",
        _APART,
        "get_multimodal_embeddings",
        old='model.get_image_features(mm_kwargs["pixel_values"]).pooler_output\n',
        new='globals().setdefault("_KNOWN", {}).setdefault(\n            mm_kwargs["pixel_values"].sum().item(),\n'
        '            model.get_image_features(mm_kwargs["pixel_values"]).pooler_output,\n        )\n',
    ),
)
