"""Mistakes that show from request to request: what should be the same every time."""

from __future__ import annotations

from extensions.testing.tests.mutants.mutant import AUDIO, LLAVA, QWEN2, QWEN_VL

MUTANTS = (
    LLAVA.given(
        "a number of calls goes into pixels",
        "test_the_same_request_twice_gives_the_same",
        "call_hf_processor",
        """
        @hookimpl(wrapper=True)
        def call_hf_processor(self):
            outputs = yield
            self.calls = getattr(self, "calls", 0) + 1
            return {"pixel_values": outputs["pixel_values"] + 0.01 * self.calls}
        """,
    ),
    LLAVA.given(
        "every second prompt has a token more",
        "test_the_same_request_twice_gives_the_same",
        "apply_hf_processor_tokens_only",
        """
        @hookimpl(wrapper=True)
        def apply_hf_processor_tokens_only(self):
            token_ids = yield
            self.odd = not getattr(self, "odd", False)
            return [*token_ids, token_ids[-1]] if self.odd else token_ids
        """,
    ),
    LLAVA.edited(
        "an image takes as many tokens as it was asked for",
        "test_the_same_request_twice_gives_the_same",
        "get_prompt_updates",
        old="            return [token] * count\n",
        new="            self.asked = getattr(self, 'asked', 0) + 1\n"
        "            return [token] * (count + (self.asked > 1) * self.asked)\n",
    ),
    AUDIO.edited(
        "embeddings are scaled by the number of calls",
        "test_the_same_request_twice_gives_the_same",
        "get_multimodal_embeddings",
        old="return [item[:count] for",
        new="self.calls = getattr(self, 'calls', 0) + 1\n        return [item[:count] * self.calls for",
    ),
    QWEN_VL.given(
        "logits are scaled by the last one's size",
        "test_the_same_request_twice_gives_the_same",
        "compute_logits",
        """
        @hookimpl
        def compute_logits(self, model, hidden_states):
            logits = model.get_output_embeddings()(hidden_states)
            before, self.scale = getattr(self, "scale", 1.0), float(logits.abs().mean())
            return logits * before
        """,
    ),
    LLAVA.given(
        "the decoder counts its calls",
        "test_the_same_request_twice_gives_the_same",
        "load_model",
        """
        @hookimpl(wrapper=True)
        def load_model(self):
            model = yield
            calls = []

            def grow(decoder, given, output):
                calls.append(1)
                output[0].mul_(1 + 0.05 * max(0, len(calls) - 9))  # the load would see it

            model.model.language_model.register_forward_hook(grow)
            return model
        """,
    ),
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

            self.images = mm_data["image"]
            time.sleep(0.05)
            return self.context.hf_processor(text=prompt, images=self.images, return_tensors="pt", **mm_kwargs)
        """,
    ),
    LLAVA.parsing(
        "a bare image is cut into rows",
        "test_one_item_is_a_list_of_one",
        "get_data_parser",
        """
        def modality_parsers(self):
            from corellm.multimodal import ModalityParser, RawItems

            return {"image": ModalityParser(RawItems, self.load_image)}
        """,
    ),
    LLAVA.edited(
        "the encoder writes into its input",
        "test_inputs_are_not_changed",
        "get_multimodal_embeddings",
        old='model.get_image_features(mm_kwargs["pixel_values"], interpolate_pos_encoding=True)',
        new='model.get_image_features(mm_kwargs["pixel_values"].sub_(0.1))',
    ),
    # --- the caller's own data ----------------------------------------------------------------------------------------
    LLAVA.parsing(
        "the caller's image is made smaller in place",
        "test_inputs_are_not_changed",
        "get_data_parser",
        """
        def load_image(self, value):
            if hasattr(value, "thumbnail"):
                value.thumbnail((32, 32))
            return super().load_image(value)
        """,
    ),
    LLAVA.given(
        "the image is made smaller in place",
        "test_inputs_are_not_changed",
        "call_hf_processor",
        """
        @hookimpl(wrapper=True)
        def call_hf_processor(self, mm_data):
            mm_data["image"][0].thumbnail((32, 32))
            return (yield)
        """,
    ),
    LLAVA.given(
        "only a huge image is made smaller in place",
        "test_inputs_are_not_changed",
        "call_hf_processor",
        """
        @hookimpl(wrapper=True)
        def call_hf_processor(self, mm_data):
            mm_data["image"][0].thumbnail((4096, 4096))
            return (yield)
        """,
    ),
    LLAVA.parsing(
        "the caller's image loses its colour profile",
        "test_inputs_are_not_changed",
        "get_data_parser",
        """
        def load_image(self, value):
            getattr(value, "info", {}).pop("icc_profile", None)
            return super().load_image(value)
        """,
    ),
    LLAVA.given(
        "a number is taken out of a list of the caller's arguments",
        "test_inputs_are_not_changed",
        "call_hf_processor",
        """
        @hookimpl(wrapper=True)
        def call_hf_processor(self, mm_kwargs):
            outputs = yield
            if "image_mean" in mm_kwargs:
                mm_kwargs["image_mean"].pop()
            return outputs
        """,
    ),
    QWEN2.parsing(
        "the first frame is made black in the caller's video",
        "test_inputs_are_not_changed",
        "get_data_parser",
        """
        def load_video(self, value):
            if isinstance(value, tuple) and hasattr(value[0], "fill"):
                value[0][0] = 0
            return super().load_video(value)
        """,
    ),
    AUDIO.edited(
        "samples are scaled in place",
        "test_inputs_are_not_changed",
        "call_hf_processor",
        old='        truncation = mm_kwargs.get("truncation", False)\n',
        new='        mm_data["audio"][0][:] /= 2\n        truncation = mm_kwargs.get("truncation", False)\n',
    ),
    LLAVA.given(
        "messages are changed by the template",
        "test_inputs_are_not_changed",
        "make_context",
        """
        @hookimpl(wrapper=True)
        def make_context(self, messages):
            chat = yield
            messages[0]["content"].pop()
            return chat
        """,
    ),
)
