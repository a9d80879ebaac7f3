"""Mistakes in what an adapter takes: kinds, numbers and sizes of items."""

from __future__ import annotations

from extensions.testing.tests.mutants.mutant import AUDIO, BLIP2, FUYU, LLAVA, QWEN2

MUTANTS = (
    # --- kinds and numbers --------------------------------------------------------------------------------------------
    QWEN2.edited(
        "videos are not taken",
        "test_every_modality_of_the_model_is_taken",
        "get_supported_mm_limits",
        old='supported_mm_limits = {"image": None, "video": None}',
        new='supported_mm_limits = {"image": None}',
    ),
    BLIP2.edited(
        "videos are said to be taken",
        "test_it_loads",
        ("get_dummy_mm_data", "get_placeholder_str", "get_supported_mm_limits"),
        old='supported_mm_limits = {"image": 1}',
        new='supported_mm_limits = {"image": 1, "video": 1}',
    ),
    FUYU.edited(
        "any number of images is said to be taken",
        "test_text_and_media_equal_the_hf_processor",
        "get_supported_mm_limits",
        old='supported_mm_limits = {"image": 1}',
        new='supported_mm_limits = {"image": None}',
    ),
    LLAVA.edited(
        "no more than a hundred images are taken",
        "test_as_many_items_as_the_reference_takes",
        "get_supported_mm_limits",
        old='supported_mm_limits = {"image": None}',
        new='supported_mm_limits = {"image": 100}',
    ),
    LLAVA.given(
        "-1 stands for any number of images",
        "test_the_models_own_limit",
        "get_supported_mm_limits",
        """
        @hookimpl
        def get_supported_mm_limits(self):
            return {"image": -1}
        """,
    ),
    LLAVA.edited(
        "one image is said to be the most, for no reason",
        "test_as_many_items_as_the_reference_takes",
        "get_supported_mm_limits",
        old='supported_mm_limits = {"image": None}',
        new='supported_mm_limits = {"image": 1}',
    ),
    LLAVA.parsing(
        "all images but the first are dropped",
        "test_limits[2]",
        ("get_data_parser", "get_supported_mm_limits", "get_prompt_updates"),
        """
        def split_images(self, value):
            from corellm.multimodal import RawItems

            return RawItems(super().split_images(value).values[:1])
        """,
    ),
    LLAVA.parsing(
        "media of other kinds are ignored",
        "test_items_of_another_kind_are_refused",
        ("get_data_parser", "get_supported_mm_limits"),
        """
        def count(self, mm_data):
            return super().count({"image": mm_data.get("image")})

        def parse(self, mm_data):
            return super().parse({"image": mm_data.get("image")})
        """,
    ),
    LLAVA.given(
        "dummy text for a single image, whatever the count",
        "test_dummies_come_in_any_number",
        "get_dummy_text",
        """
        @hookimpl
        def get_dummy_text(self):
            return self.context.hf_processor.image_token
        """,
    ),
    LLAVA.edited(
        "a single dummy image, whatever the count",
        "test_dummies_come_in_any_number",
        "get_dummy_mm_data",
        old='dummy_images(mm_counts.get("image", 0), ',
        new="dummy_images(1, ",
    ),
    LLAVA.edited(
        "a modality by another name",
        "test_it_loads",
        ("get_placeholder_str", "get_supported_mm_limits", "get_dummy_mm_data"),
        old='supported_mm_limits = {"image": None}',
        new='supported_mm_limits = {"images": None}',
    ),
    # --- sizes --------------------------------------------------------------------------------------------------------
    FUYU.edited(
        "the dummy is not the largest image",
        "test_no_item_exceeds_the_stated_maximum",
        "get_dummy_mm_data",
        old="width=width, height=height, ",
        new="width=width // 2, height=height // 2, ",
    ),
    FUYU.edited(
        "the dummy is so small that most images do not fit the encoder cache",
        "test_the_same_request_twice_gives_the_same",
        "get_dummy_mm_data",
        old="width=width, height=height, ",
        new="width=1, height=1, ",
    ),
    FUYU.edited(
        "the dummy is of four by three, and other ratios become more tokens",
        "test_no_item_exceeds_the_stated_maximum",
        "get_dummy_mm_data",
        old="width=width, height=height, ",
        new="width=width, height=3 * width // 4, ",
    ),
    FUYU.edited(
        "the dummy is of the checkpoint's size, whatever the operator's",
        "test_the_plan_follows_the_operators_arguments",
        "get_dummy_mm_data",
        old='self.context.kwargs_for("image").get("size", self.context.hf_processor.image_processor.size)',
        new="self.context.hf_processor.image_processor.size",
    ),
    FUYU.edited(
        "the operator's sizes do not count",
        "test_the_plan_is_for_the_operators_sizes",
        "get_dummy_mm_data",
        old=", bounds=bounds)}",
        new=")}",
    ),
    FUYU.edited(
        "the dummy keeps its ratio within the operator's sizes",
        "test_the_plan_is_for_the_operators_sizes",
        "get_dummy_mm_data",
        old='        bounds = mm_options.get("image")\n',
        new='        bounds = mm_options.get("image", {})\n'
        '        scale = min(1, bounds.get("width", width) / width, bounds.get("height", height) / height)\n'
        "        width, height = int(width * scale), int(height * scale)\n",
    ),
    QWEN2.edited(
        "the bound is the checkpoint's, whatever the operator's arguments",
        "test_the_plan_follows_the_operators_arguments",
        "get_mm_max_tokens_per_item",
        old='images, videos = self.context.kwargs_for("image"), self.context.kwargs_for("video")',
        new="images, videos = {}, {}",
    ),
    LLAVA.given(
        "the tower's tokens are stated, whatever the processor crops to",
        "test_the_plan_follows_the_operators_arguments",
        "get_mm_max_tokens_per_item",
        """
        @hookimpl
        def get_mm_max_tokens_per_item(self):
            vision = self.context.hf_config.vision_config
            return {"image": (vision.image_size // vision.patch_size) ** 2}
        """,
    ),
    LLAVA.given(
        "more tokens are stated than the dummy has",
        "test_the_dummy_is_the_stated_maximum",
        "get_mm_max_tokens_per_item",
        """
        @hookimpl
        def get_mm_max_tokens_per_item(self):
            return {"image": 576}
        """,
    ),
    LLAVA.given(
        "fewer tokens are stated than the dummy has",
        "test_it_loads",
        "get_mm_max_tokens_per_item",
        """
        @hookimpl
        def get_mm_max_tokens_per_item(self):
            return {"image": 15}
        """,
    ),
    QWEN2.of("processor.py").edited(
        "very long images are forgotten in the bound",
        "test_no_item_exceeds_the_stated_maximum",
        ("get_mm_max_tokens_per_item", "get_dummy_mm_data"),
        old="        isqrt(_MAX_ASPECT_RATIO * most * groups) + groups,\n"
        "        least + 15 * (isqrt(least * groups) + 1) + groups,\n",
        new="        least,\n",
    ),
    LLAVA.edited(
        "images are taken to be square",
        "test_arguments_keep_to_the_plan",
        "get_prompt_updates",
        old="        height, width = pixel_values.shape[-2:]\n",
        new="        height, width = pixel_values.shape[-2:]\n        assert height == width\n",
    ),
    QWEN2.edited(
        "dummies forget that a sequence may be short",
        "test_a_short_context",
        "get_dummy_mm_data",
        old="tokens = max(1, seq_len - 32)",
        new="tokens = seq_len - 32",
    ),
    LLAVA.parsing(
        "the operator's bounds do not count",
        "test_the_operators_bounds_hold",
        "get_data_parser",
        """
        def load_image(self, value):
            return value.convert("RGB") if hasattr(value, "mode") else super().load_image(value)
        """,
    ),
    AUDIO.edited(
        "audio that is too long does not raise a request's error",
        "test_no_item_exceeds_the_stated_maximum",
        "call_hf_processor",
        old="            raise MediaTooLargeError(",
        new="            raise ValueError(num_samples)\n            raise MediaTooLargeError(",
    ),
    AUDIO.edited(
        "audio that is too short is not refused",
        "test_rows_match_the_mask",
        ("call_hf_processor", "get_prompt_updates"),
        old="        if not _lengths(-(-num_samples // extractor.hop_length))[1]:",
        new="        if False:",
    ),
)
