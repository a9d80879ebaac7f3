"""Mistakes that show with another checkpoint than the tiny one: settings that are assumed, state of another model."""

from __future__ import annotations

from extensions.testing.tests.mutants.mutant import BLIP2, LLAVA, QWEN2, QWEN_VL

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
        old='model.get_image_features(mm_kwargs["pixel_values"], interpolate_pos_encoding=True)',
        new='model.get_image_features(mm_kwargs["pixel_values"], vision_feature_layer=-2)',
    ),
    QWEN2.edited(
        "four patches are a token",
        _VARIANT,
        ("get_multimodal_embeddings", "get_prompt_updates"),
        old="// self.context.hf_config.vision_config.spatial_merge_size**2",
        new="// 4",
    ),
    # --- what cannot be served ----------------------------------------------------------------------------------------
    BLIP2.edited(
        "the processor's number of queries is not looked at",
        "test_checkpoints_that_cannot_be_served_are_refused",
        "load_model",
        old="processor.num_query_tokens not in (None, config.num_query_tokens)",
        new="processor.num_query_tokens == 0",
    ),
    # --- another model in the process ---------------------------------------------------------------------------------
    LLAVA.edited(
        "the model is kept in the class",
        _APART,
        "get_multimodal_embeddings",
        old="        output = model.get",
        new='        Llava.model = model = getattr(Llava, "model", model)\n        output = model.get',
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
        old='model.get_image_features(mm_kwargs["pixel_values"], interpolate_pos_encoding=True)\n',
        new='globals().setdefault("_KNOWN", {}).setdefault(\n            mm_kwargs["pixel_values"].sum().item(),\n'
        '            model.get_image_features(mm_kwargs["pixel_values"]),\n        )\n',
    ),
    LLAVA.edited(
        "the module keeps the first model's image placeholder",
        _VARIANT,
        "get_placeholder_str",
        old='        return f"{self.context.hf_processor.image_token}\\n" if modality == "image" else None\n',
        new='        text = globals().setdefault("_TEXT", f"{self.context.hf_processor.image_token}\\n")\n'
        '        return text if modality == "image" else None\n',
    ),
    # --- files of a checkpoint ----------------------------------------------------------------------------------------
    LLAVA.edited(
        "the image token is the one that the processor's file names",
        "test_entries_that_older_checkpoints_lack",
        "get_prompt_updates",
        old="        token = self.context.hf_config.image_token_id\n",
        new="        import json\n\n"
        '        stated = json.loads((self.context.model_path / "processor_config.json").read_text())\n'
        '        token = self.context.tokenizer.convert_tokens_to_ids(stated["image_token"])\n',
    ),
    QWEN2.of("processor.py").edited(
        "the image processor of a directory is made once",
        "test_a_changed_directory_is_read_anew",
        "register_processor",
        old="        images = transformers.Qwen2VLImageProcessorPil.from_pretrained(path)\n",
        new="        images = vars(transformers).setdefault(\n"
        '            f"_of_{path}", transformers.Qwen2VLImageProcessorPil.from_pretrained(path)\n        )\n',
    ),
    QWEN_VL.of("original/tokenizer.py").edited(
        "the tokenizer of a directory is made once",
        "test_a_changed_directory_is_read_anew",
        "register_tokenizer",
        old="def load_tokenizer(",
        new='@__import__("functools").cache\ndef load_tokenizer(',
    ),
)
