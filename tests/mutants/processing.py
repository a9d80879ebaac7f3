"""Mistakes on the way from text and media to token ids and tensors."""

from __future__ import annotations

from tests.mutants.mutant import AUDIO, BLIP2, FUYU, LLAVA, QWEN2, QWEN3, QWEN_VL

MUTANTS = (
    # --- tokens -----------------------------------------------------------------------------------------------------
    LLAVA.given(
        "BOS is cut off",
        "test_text_alone_equals_the_hf_processor",
        "apply_hf_processor_tokens_only",
        """
        @hookimpl
        def apply_hf_processor_tokens_only(self, token_ids: list[int]) -> list[int]:
            return [token for token in token_ids if token != self.context.tokenizer.bos_token_id]
        """,
    ),
    LLAVA.given(
        "BOS comes twice",
        "test_text_alone_equals_the_hf_processor",
        "apply_hf_processor_tokens_only",
        """
        @hookimpl
        def apply_hf_processor_tokens_only(self, token_ids: list[int]) -> list[int]:
            return [self.context.tokenizer.bos_token_id, *token_ids]
        """,
    ),
    FUYU.edited(
        "an answer begins after text alone, too",
        "test_text_alone_equals_the_hf_processor",
        "apply_hf_processor_tokens_only",
        old="        if not mm_counts:\n            return token_ids\n",
        new="",
    ),
    FUYU.edited(
        "the answer's token is forgotten",
        "test_text_and_media_equal_the_hf_processor",
        "apply_hf_processor_tokens_only",
        old="        return [*token_ids, answer[-1]] if token_ids else answer",
        new="        return token_ids",
    ),
    FUYU.edited(
        "the tokenizer's prefix stays beside a picture",
        "test_text_and_media_equal_the_hf_processor",
        "apply_hf_processor_tokens_only",
        old="        if prefix and token_ids[: len(prefix)] == prefix:\n            token_ids = token_ids[len(prefix) :]\n",
        new="",
    ),
    FUYU.edited(
        "the picture goes behind the prompt",
        "test_text_and_media_equal_the_hf_processor",
        "get_prompt_updates",
        old="PromptIndexTargets.start(), block",
        new="PromptIndexTargets.end(), block",
    ),
    FUYU.edited(
        "rows and columns are swapped",
        "test_text_and_media_equal_the_hf_processor",
        "get_prompt_updates",
        old="            rows, columns = out_mm_kwargs",
        new="            columns, rows = out_mm_kwargs",
    ),
    FUYU.edited(
        "nothing ends the picture",
        "test_text_and_media_equal_the_hf_processor",
        "get_prompt_updates",
        old="[*row * rows, begin_text]",
        new="row * rows",
    ),
    BLIP2.edited(
        "the picture goes after BOS",
        "test_text_and_media_equal_the_hf_processor",
        "get_prompt_updates",
        old="PromptIndexTargets.start(), insertion",
        new="PromptIndexTargets.prefix([self.context.tokenizer.bos_token_id]), insertion),\n"
        '            PromptInsertion("image", PromptIndexTargets.start(), insertion',
    ),
    LLAVA.edited(
        "the newline after a picture is put into its placeholder",
        "test_text_and_media_equal_the_hf_processor",
        "get_prompt_updates",
        old="            return [token] * count\n",
        new="            from corellm.multimodal import PromptUpdateDetails\n\n            newline = self.context.tokenizer(chr(10), add_special_tokens=False)['input_ids']\n"
        "            return PromptUpdateDetails.select_token_id([token] * count + newline, token)\n",
    ),
    QWEN3.edited(
        "time stamps are whole seconds",
        "test_text_and_media_equal_the_hf_processor",
        "get_prompt_updates",
        old="{seconds:.1f} seconds",
        new="{seconds:.0f} seconds",
    ),
    QWEN_VL.edited(
        "paths between the tags stay",
        "test_it_loads",
        ("apply_hf_processor_tokens_only", "get_prompt_updates"),
        old="        return collapsed\n",
        new="        return token_ids\n",
    ),
    # --- tensors ----------------------------------------------------------------------------------------------------
    LLAVA.given(
        "pixels are normalised twice",
        "test_text_and_media_equal_the_hf_processor",
        "call_hf_processor",
        """
        @hookimpl(wrapper=True)
        def call_hf_processor(self):
            outputs = yield
            return {"pixel_values": (outputs["pixel_values"] - 0.45) / 0.27}
        """,
    ),
    LLAVA.given(
        "pixels are rounded to half precision",
        "test_text_and_media_equal_the_hf_processor",
        "call_hf_processor",
        """
        @hookimpl(wrapper=True)
        def call_hf_processor(self):
            outputs = yield
            return {"pixel_values": outputs["pixel_values"].half().float()}
        """,
    ),
    LLAVA.given(
        "every picture becomes the first one's tensors",
        "test_text_and_media_equal_the_hf_processor",
        "call_hf_processor",
        """
        @hookimpl(wrapper=True)
        def call_hf_processor(self):
            outputs = yield
            self.first = getattr(self, "first", None) or outputs
            return self.first
        """,
    ),
    QWEN_VL.of("original/processor.py").edited(
        "mean and deviation are swapped",
        "test_text_and_media_equal_the_hf_processor",
        "call_hf_processor",
        old="(pixels - _MEAN) / _STD",
        new="(pixels - _STD) / _MEAN",
    ),
    QWEN_VL.of("original/processor.py").edited(
        "a picture is cropped instead of squeezed",
        "test_text_and_media_equal_the_hf_processor",
        "call_hf_processor",
        old='picture.convert("RGB").resize(size, Image.Resampling.BICUBIC)',
        new='picture.convert("RGB").crop((0, 0, *size))',
    ),
    QWEN2.of("video_processor.py").edited(
        "frames come in reverse order",
        "test_text_and_media_equal_the_hf_processor",
        "call_hf_processor",
        old="for frame in video.read(indices))",
        new="for frame in reversed(list(video.read(indices))))",
    ),
    AUDIO.edited(
        "the mask of a sound is said not to be needed",
        "test_it_loads",
        ("get_prompt_updates", "get_mm_fields_config"),
        old='"feature_attention_mask": batched}',
        new='"feature_attention_mask": None}',
    ),
    FUYU.edited(
        "a row of the picture is lost",
        "test_text_and_media_equal_the_hf_processor",
        ("call_hf_processor", "get_prompt_updates"),
        old="        return {\"image_patches\": patches.reshape(1, rows, -1, patches.shape[-1])}",
        new="        return {\"image_patches\": patches.reshape(1, rows, -1, patches.shape[-1])[:, : max(1, rows - 1)]}",
    ),
    LLAVA.given(
        "a tensor that nobody divides",
        "test_it_loads",
        ("call_hf_processor", "get_mm_fields_config"),
        """
        @hookimpl(wrapper=True)
        def call_hf_processor(self):
            outputs = yield
            return {**outputs, "image_sizes": outputs["pixel_values"].new_tensor([[56, 56]])}
        """,
    ),
    LLAVA.edited(
        "a picture's pixels are said to be shared",
        "test_fields_divide_and_join",
        "get_mm_fields_config",
        old='MultiModalFieldConfig.batched("image")',
        new='MultiModalFieldConfig.shared("image", 1)',
    ),
    QWEN2.edited(
        "patches are divided by the first item's size",
        "test_fields_divide_and_join",
        "get_mm_fields_config",
        old="hf_inputs[grids].prod(-1))",
        new="[len(hf_inputs[pixels]) // len(hf_inputs[grids])] * len(hf_inputs[grids]))",
    ),
    # --- arguments --------------------------------------------------------------------------------------------------
    LLAVA.given(
        "arguments do not reach the processor",
        "test_processor_arguments_mean_what_they_mean",
        "call_hf_processor",
        """
        @hookimpl
        def call_hf_processor(self, prompt, mm_data):
            return self.context.hf_processor(text=prompt, images=mm_data["image"], return_tensors="pt")
        """,
    ),
    LLAVA.given(
        "unknown arguments are accepted",
        "test_unknown_processor_arguments_are_refused",
        "call_hf_processor",
        """
        @hookimpl
        def call_hf_processor(self, prompt, mm_data, mm_kwargs):
            return self.context.hf_processor(text=prompt, images=mm_data["image"], return_tensors="pt", **mm_kwargs)
        """,
    ),
    QWEN2.of("settings.py").edited(
        "unknown arguments are left out",
        "test_unknown_processor_arguments_are_refused",
        "call_hf_processor",
        old="    if unknown := sorted(set(kwargs) - set(ACCEPTED)):",
        new="    kwargs = {name: value for name, value in kwargs.items() if name in ACCEPTED}\n"
        "    if unknown := sorted(set(kwargs) - set(ACCEPTED)):",
    ),
    LLAVA.given(
        "one request's arguments stay for the next",
        "test_processor_arguments_mean_what_they_mean",
        "call_hf_processor",
        """
        @hookimpl(tryfirst=True)
        def call_hf_processor(self, mm_kwargs):
            for name, value in mm_kwargs.items():
                setattr(self.context.hf_processor.image_processor, name, value)
        """,
    ),
    LLAVA.given(
        "arguments are taken out of the request's",
        "test_processor_arguments_mean_what_they_mean",
        "call_hf_processor",
        """
        @hookimpl
        def call_hf_processor(self, prompt, mm_data, mm_kwargs):
            normalize = mm_kwargs.pop("do_normalize", True)
            return self.context.hf_processor(
                text=prompt, images=mm_data["image"], return_tensors="pt", do_normalize=normalize, **mm_kwargs
            )
        """,
    ),
    # --- the same every time ----------------------------------------------------------------------------------------
    LLAVA.given(
        "noise is added to pixels",
        "test_cached_equals_uncached",
        "call_hf_processor",
        """
        @hookimpl(wrapper=True)
        def call_hf_processor(self):
            import torch

            outputs = yield
            return {"pixel_values": outputs["pixel_values"] + 0.01 * torch.randn(outputs["pixel_values"].shape)}
        """,
    ),
    LLAVA.given(
        "pixels are normalised by what came before",
        "test_items_do_not_know_of_each_other",
        "call_hf_processor",
        """
        @hookimpl(wrapper=True)
        def call_hf_processor(self):
            outputs = yield
            mean = outputs["pixel_values"].mean()
            before, self.mean = getattr(self, "mean", mean), mean
            return {"pixel_values": outputs["pixel_values"] - before}
        """,
    ),
    LLAVA.given(
        "the item of one thread is processed by another",
        "test_two_threads_equal_one",
        "call_hf_processor",
        """
        @hookimpl
        def call_hf_processor(self, prompt, mm_data, mm_kwargs):
            import time

            self.pictures = mm_data["image"]
            time.sleep(0.001)
            return self.context.hf_processor(text=prompt, images=self.pictures, return_tensors="pt", **mm_kwargs)
        """,
    ),
    LLAVA.given(
        "a bare picture is cut into rows",
        "test_one_item_is_a_list_of_one",
        "get_data_parser",
        """
        @hookimpl
        def get_data_parser(self):
            from corellm.multimodal.parsing import DataParser, ModalityParser, RawItems

            class Parser(DataParser):
                def modality_parsers(self):
                    return {"image": ModalityParser(RawItems, self.load_image)}

            return Parser(hidden_size=self.context.hf_config.text_config.hidden_size)
        """,
    ),
    LLAVA.edited(
        "the encoder writes into its input",
        "test_inputs_are_not_changed",
        "get_multimodal_embeddings",
        old='model.get_image_features(mm_kwargs["pixel_values"])',
        new='model.get_image_features(mm_kwargs["pixel_values"].sub_(0.1))',
    ),
)
