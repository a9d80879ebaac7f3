"""Mistakes in placing items: placeholders and positions."""

from __future__ import annotations

from extensions.testing.tests.mutants.mutant import BLIP2, FUYU, LLAVA, QWEN2, QWEN3

MUTANTS = (
    # --- placeholders -------------------------------------------------------------------------------------------------
    LLAVA.edited(
        "one token too few for an image",
        "test_it_loads",
        "get_prompt_updates",
        old="        return patches + class_tokens - int(",
        new="        return patches + class_tokens - 1 - int(",
    ),
    LLAVA.edited(
        "an image without a placeholder goes to the end",
        "test_missing_placeholders_are_refused",
        "get_prompt_updates",
        old='        return [PromptReplacement("image", target=[token], replacement=replacement)]\n',
        new="        from corellm.multimodal import PromptIndexTargets, PromptInsertion\n\n"
        "        return [\n"
        '            PromptReplacement("image", target=[token], replacement=replacement),\n'
        '            PromptInsertion("image", target=PromptIndexTargets.end(), insertion=replacement),\n'
        "        ]\n",
    ),
    LLAVA.given(
        "placeholders without an image are left out",
        "test_surplus_placeholders_are_refused",
        ("get_prompt_updates", "apply_hf_processor_tokens_only"),
        """
        @hookimpl
        def apply_hf_processor_tokens_only(self, token_ids, mm_counts):
            return token_ids if mm_counts else [t for t in token_ids if t != self.context.hf_config.image_token_id]
        """,
    ),
    LLAVA.given(
        "placeholders that stand side by side become one",
        "test_expanded_prompts_are_refused",
        ("get_prompt_updates", "apply_hf_processor_tokens_only"),
        """
        @hookimpl
        def apply_hf_processor_tokens_only(self, token_ids):
            image = self.context.hf_config.image_token_id
            return [t for i, t in enumerate(token_ids) if i == 0 or t != image or token_ids[i - 1] != image]
        """,
    ),
    FUYU.edited(
        "newline tokens take embeddings",
        "test_it_loads",
        "get_prompt_updates",
        old="PromptUpdateDetails.select_token_id([*row * rows, begin_text], processor.image_token_id)",
        new="PromptUpdateDetails.from_seq([*row * rows, begin_text])",
    ),
    BLIP2.edited(
        "one query too many",
        "test_it_loads",
        "get_prompt_updates",
        old="or config.num_query_tokens)",
        new="or config.num_query_tokens + 1)",
    ),
    QWEN2.edited(
        "patches that are merged count twice",
        "test_it_loads",
        "get_prompt_updates",
        old="spatial_merge_size**2] * time",
        new="spatial_merge_size] * time",
    ),
    QWEN2.edited(
        "videos have the images' placeholder",
        "test_items_do_not_know_of_each_other",
        "get_prompt_updates",
        old='getattr(self.context.hf_config, f"{modality}_token_id")',
        new="self.context.hf_config.image_token_id",
    ),
    FUYU.edited(
        "the first tokens take embeddings, whichever they are",
        "test_masks_follow_token_ids",
        "get_prompt_updates",
        old="PromptUpdateDetails.select_token_id([*row * rows, begin_text], processor.image_token_id)",
        new="PromptUpdateDetails(\n"
        "                [*row * rows, begin_text], [True] * (rows * columns) + [False] * (rows + 1)\n"
        "            )",
    ),
    LLAVA.edited(
        "placeholders of another modality",
        "test_it_loads",
        "get_prompt_updates",
        old='PromptReplacement("image", target',
        new='PromptReplacement("images", target',
    ),
    # --- positions ----------------------------------------------------------------------------------------------------
    QWEN2.edited(
        "items side by side are refused at the beginning of a prompt only",
        "test_items_side_by_side",
        "get_rope_positions",
        old="if first.placeholder.end == border and kinds",
        new="if first.placeholder.end == border and border < 2 and kinds",
    ),
    QWEN2.edited(
        "an image beside a video has its positions",
        "test_items_side_by_side",
        "get_rope_positions",
        old="        positions, _ = model.model.get_rope_index(ids, kinds, **stacked)\n",
        new="        if any(one.placeholder.end == two.placeholder.offset for one, two in pairwise(mm_features)):\n"
        "            return torch.arange(len(token_ids)).expand(3, -1), 0\n"
        "        positions, _ = model.model.get_rope_index(ids, kinds, **stacked)\n",
    ),
    QWEN2.edited(
        "what is generated comes one position late",
        "test_positions",
        "get_rope_positions",
        old="        return positions[:, 0], offset",
        new="        return positions[:, 0], offset + 1",
    ),
    QWEN3.edited(
        "positions are forgotten for what is generated",
        "test_positions",
        "get_rope_positions",
        old="    @hookimpl\n    def get_multimodal_embedding_width(",
        new="    @hookimpl\n    def get_rope_positions(self, model: Any, token_ids: Any, mm_features: Any) -> Any:\n"
        "        return super().get_rope_positions(model, token_ids, mm_features)[0], 0\n\n"
        "    @hookimpl\n    def get_multimodal_embedding_width(",
    ),
    QWEN2.edited(
        "positions without the dimension of the batch",
        "test_positions",
        "get_rope_positions",
        old="        return positions[:, 0], offset",
        new="        return positions, offset",
    ),
)
