"""Mistakes in the encoder's embeddings, and in how they are merged into a prompt."""

from __future__ import annotations

from extensions.testing.tests.mutants.mutant import AUDIO, BLIP2, FUYU, LLAVA, QWEN2, QWEN3

_MERGE = """
@hookimpl
def merge_multimodal_embeddings(self, inputs_embeds, multimodal_embeddings, is_multimodal):
"""

MUTANTS = (
    # --- what an item shows -----------------------------------------------------------------------------------------
    LLAVA.edited(
        "an image becomes the embeddings of its tokens",
        "test_different_items_are_told_apart",
        "get_multimodal_embeddings",
        old="        return features\n",
        new="        import torch\n\n"
        "        token = torch.tensor(self.context.hf_config.image_token_id)\n"
        "        row = model.get_input_embeddings()(token)\n"
        "        return [row.expand_as(f) for f in features]\n",
    ),
    AUDIO.edited(
        "all audio is silence for the encoder",
        "test_different_items_are_told_apart",
        ("get_multimodal_embeddings", "call_hf_processor"),
        old='            mm_data["audio"], sampling_rate=rate,',
        new='            [0 * audio for audio in mm_data["audio"]], sampling_rate=rate,',
    ),
    LLAVA.of("tiny.py").edited(
        "a part of the configuration names a token that there is not",
        "test_tokens_of_items_are_in_the_vocabulary",
        "make_tiny_checkpoint",
        old="    model = transformers.LlavaForConditionalGeneration(config)\n",
        new="    config.vision_config.image_token_id = 200_010\n"
        "    model = transformers.LlavaForConditionalGeneration(config)\n",
    ),
    QWEN2.edited(
        "positions of a video behind an image are a token off",
        "test_pairs_in_a_conversation_equal_the_reference",
        "get_rope_positions",
        old="        return positions[:, 0], offset\n",
        new='        if [feature.modality for feature in mm_features] == ["image", "video"]:\n'
        "            positions = positions + (ids == self._token('video'))\n"
        "        return positions[:, 0], offset\n",
    ),
    # --- encoder batches --------------------------------------------------------------------------------------------
    LLAVA.edited(
        "images of a batch come out in reverse order",
        "test_encoder_batches_equal_single_items",
        "get_multimodal_embeddings",
        old="        return features\n",
        new="        return features[::-1]\n",
    ),
    LLAVA.edited(
        "the mean of a batch is subtracted",
        "test_encoder_batches_equal_single_items",
        "get_multimodal_embeddings",
        old="        return features\n",
        new="        mean = sum(f.mean() for f in features) / len(features)\n"
        "        return [f - mean for f in features]\n",
    ),
    LLAVA.edited(
        "a batch is one long item",
        "test_encoder_batches_equal_single_items",
        "get_multimodal_embeddings",
        old="        return features\n",
        new="        import torch\n\n        return [torch.cat(features)]\n",
    ),
    LLAVA.edited(
        "images beyond the fourth of a batch are left out",
        "test_encoder_batches_equal_single_items",
        "get_multimodal_embeddings",
        old="        return features\n",
        new="        return [f * (i < 4) for i, f in enumerate(features)]\n",
    ),
    LLAVA.edited(
        "images beyond the eighth of a batch are left out",
        "test_encoder_batches_equal_single_items",
        "get_multimodal_embeddings",
        old="        return features\n",
        new="        return [f * (i < 8) for i, f in enumerate(features)]\n",
    ),
    FUYU.edited(
        "the mean of images of one size is subtracted",
        "test_encoder_batches_equal_single_items",
        "get_multimodal_embeddings",
        old="        return [model.model.vision_embed_tokens(patches.flatten(0, 1)) for patches in "
        'mm_kwargs["image_patches"]]\n',
        new='        images = mm_kwargs["image_patches"]\n'
        "        if not isinstance(images, list) and len(images) > 1:\n"
        "            images = images - images.mean(0)\n"
        "        return [model.model.vision_embed_tokens(patches.flatten(0, 1)) for patches in images]\n",
    ),
    QWEN2.edited(
        "the smallest items of a batch come first",
        "test_encoder_batches_equal_single_items",
        "get_multimodal_embeddings",
        old="        return embeddings\n",
        new="        return sorted(embeddings, key=len)\n",
    ),
    AUDIO.edited(
        "padding is attended to, up to the longest audio of a batch",
        "test_encoder_batches_equal_single_items",
        "get_multimodal_embeddings",
        old="(positions < after_convolution[:, None])",
        new="(positions < after_convolution.max()).expand(len(features), -1)",
    ),
    AUDIO.edited(
        "padding is attended to beside an item that has none",
        "test_encoder_batches_equal_single_items",
        "get_multimodal_embeddings",
        old="(positions < after_convolution[:, None])",
        new="((positions < after_convolution[:, None]) | (after_convolution.max() == len(positions)))",
    ),
    LLAVA.edited(
        "a single item comes without its dimension",
        "test_it_loads",
        "get_multimodal_embeddings",
        old="        return features\n",
        new="        return features if len(features) > 1 else features[0]\n",
    ),
    LLAVA.edited(
        "noise is left in the encoder",
        "test_encoder_batches_equal_single_items",
        "get_multimodal_embeddings",
        old="        return features\n",
        new="        import torch\n\n        return [f + 0.01 * torch.randn_like(f) for f in features]\n",
    ),
    AUDIO.edited(
        "all audio items of a batch are as long as the longest",
        "test_encoder_batches_equal_single_items",
        "get_multimodal_embeddings",
        old="[:count] for ",
        new="[: after_pooling.max()] for ",
    ),
    AUDIO.edited(
        "the embeddings of padding are kept",
        "test_rows_match_the_mask",
        "get_multimodal_embeddings",
        old="[:count] for ",
        new=" for ",
    ),
    AUDIO.edited(
        "lengths are rounded down",
        "test_rows_match_the_mask",
        "get_prompt_updates",
        old="                count = _lengths(int(mask.sum()))[1]\n",
        new="                count = max(1, int(mask.sum()) // 4)\n",
    ),
    BLIP2.edited(
        "positions are not interpolated for another size",
        "test_arguments_reach_the_answers",
        "get_multimodal_embeddings",
        old=", interpolate_pos_encoding=True)",
        new=")",
    ),
    BLIP2.edited(
        "positions are interpolated for another height only",
        "test_arguments_reach_the_answers",
        "get_multimodal_embeddings",
        old='(mm_kwargs["pixel_values"], interpolate_pos_encoding=True)',
        new='(\n            mm_kwargs["pixel_values"],\n            interpolate_pos_encoding='
        'mm_kwargs["pixel_values"].shape[2] != self.context.hf_config.vision_config.image_size,\n        )',
    ),
    QWEN3.edited(
        "embeddings without their deepstack features",
        "test_it_loads",
        "get_multimodal_embeddings",
        old="torch.cat([torch.cat(encoded.pooler_output), *levels], dim=-1)",
        new="torch.cat(encoded.pooler_output)",
    ),
    FUYU.edited(
        "patches are made float32",
        "test_half_precision[bfloat16]",
        "get_multimodal_embeddings",
        old="patches.flatten(0, 1)",
        new="patches.float().flatten(0, 1)",
    ),
    LLAVA.edited(
        "embeddings are zero in half precision",
        "test_half_precision[bfloat16]",
        "get_multimodal_embeddings",
        old="        return features\n",
        new="        return [f * (f.element_size() == 4) for f in features]\n",
    ),
    # --- merging ----------------------------------------------------------------------------------------------------
    LLAVA.given(
        "a single embedding is written to every place",
        "test_merging_counts_rows",
        "merge_multimodal_embeddings",
        _MERGE
        + """
    inputs_embeds[is_multimodal] = multimodal_embeddings
    return inputs_embeds
""",
    ),
    LLAVA.given(
        "surplus embeddings are ignored",
        "test_merging_counts_rows",
        "merge_multimodal_embeddings",
        _MERGE
        + """
    return inputs_embeds.masked_scatter(is_multimodal[:, None], multimodal_embeddings)
""",
    ),
    LLAVA.given(
        "embeddings are written in reverse order",
        "test_merging_counts_rows",
        "merge_multimodal_embeddings",
        _MERGE
        + """
    from corellm.multimodal import write_rows

    return write_rows(inputs_embeds, multimodal_embeddings.flip(0), is_multimodal)
""",
    ),
    LLAVA.given(
        "text before an image is written to, too",
        "test_merging_counts_rows",
        "merge_multimodal_embeddings",
        _MERGE
        + """
    from corellm.multimodal import write_rows

    inputs_embeds[0] = 0
    return write_rows(inputs_embeds, multimodal_embeddings, is_multimodal)
""",
    ),
    LLAVA.given(
        "places are numbered from the start of each chunk",
        "test_chunks_give_the_same_embeddings",
        "merge_multimodal_embeddings",
        _MERGE
        + """
    from corellm.multimodal import write_rows

    numbers = is_multimodal.cumsum(0)[is_multimodal]
    return write_rows(inputs_embeds, multimodal_embeddings + 0.01 * numbers[:, None], is_multimodal)
""",
    ),
    # --- embeddings that users bring --------------------------------------------------------------------------------
    LLAVA.edited(
        "the length of given embeddings is ignored",
        "test_precomputed_embeddings",
        "get_prompt_updates",
        old='            count = mm_items["image"].num_embeddings(index)\n            if count is None:\n',
        new="            if True:\n",
    ),
    LLAVA.edited(
        "all given embeddings are as long as the first",
        "test_precomputed_embeddings",
        "get_prompt_updates",
        old='mm_items["image"].num_embeddings(index)',
        new='mm_items["image"].num_embeddings(0)',
    ),
    FUYU.edited(
        "embeddings are not refused",
        "test_precomputed_embeddings",
        "get_prompt_updates",
        old='    refuse_embeddings = "they do not say how long the image\'s rows are"\n',
        new="",
    ),
    FUYU.given(
        "embeddings are refused without a reason",
        "test_precomputed_embeddings",
        "refuse_embeddings",
        """
        @hookimpl
        def refuse_embeddings(self):
            return True
        """,
    ),
    LLAVA.edited(
        "embeddings are refused, and a token each is all that an image is",
        "test_embeddings_are_refused_for_a_reason",
        "refuse_embeddings",
        old='    supported_mm_limits = {"image": None}\n',
        new='    supported_mm_limits = {"image": None}\n    refuse_embeddings = "they are not supported"\n',
    ),
    LLAVA.given(
        "embeddings of any width are taken",
        "test_precomputed_embeddings",
        "get_data_parser",
        """
        @hookimpl
        def get_data_parser(self):
            from corellm.multimodal import DataParser

            return DataParser()
        """,
    ),
    QWEN2.edited(
        "items have no positions of their own",
        "test_embeddings_are_refused_for_a_reason",
        "get_rope_positions",
        old="    @hookimpl\n    def get_rope_positions(",
        new="    def no_positions(",
    ),
)
