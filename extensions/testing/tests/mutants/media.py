"""Mistakes with odd forms of media."""

from __future__ import annotations

from extensions.testing.tests.mutants.mutant import AUDIO, FUYU, LLAVA, QWEN2

MUTANTS = (
    FUYU.parsing(
        "images keep their modes",
        "test_odd_images",
        ("get_data_parser", "get_multimodal_embeddings"),
        """
        def load_image(self, value):
            return value if hasattr(value, "mode") else super().load_image(value)
        """,
    ),
    LLAVA.parsing(
        "EXIF orientation is lost",
        "test_turned_images_stand_upright",
        "get_data_parser",
        """
        def load_image(self, value):
            from io import BytesIO
            from PIL import Image

            if not isinstance(value, bytes):
                return super().load_image(value)
            return Image.open(BytesIO(value)).convert("RGB")
        """,
    ),
    LLAVA.parsing(
        "a broken file becomes a black image",
        "test_broken_media_are_refused",
        "get_data_parser",
        """
        def load_image(self, value):
            from PIL import Image
            from corellm.errors import MediaError

            try:
                return super().load_image(value)
            except MediaError:
                return Image.new("RGB", (56, 56))
        """,
    ),
    QWEN2.of("video_processor.py").edited(
        "a video of a single frame has no pair",
        "test_short_videos_and_audio",
        "call_hf_processor",
        old="    seconds += seconds[-1:] * (-len(seconds) % step)\n",
        new="",
    ),
    AUDIO.given(
        "audio is taken to be at another rate",
        "test_every_form_of_an_item_is_the_same",
        "get_data_parser",
        """
        @hookimpl
        def get_data_parser(self):
            from corellm.multimodal import DataParser

            return DataParser(hidden_size=self.context.hf_config.text_config.hidden_size, sampling_rate=8000)
        """,
    ),
    # --- whole numbers of chunks, large items -----------------------------------------------------------------------
    AUDIO.parsing(
        "the last sample of audio of whole seconds is lost",
        "test_items_of_any_size_equal_the_hf_processor",
        ("call_hf_processor", "get_data_parser"),
        """
        def load_audio(self, value):
            samples = super().load_audio(value)
            return samples if len(samples) % 16000 else samples[:-1]
        """,
    ),
    LLAVA.given(
        "the tensors of large images are kept in the class by their size",
        "test_items_of_any_size_equal_the_hf_processor",
        "call_hf_processor",
        """
        known = {}

        @hookimpl(wrapper=True)
        def call_hf_processor(self, mm_data):
            outputs = yield
            image = mm_data["image"][0]
            return outputs if image.width < 640 else self.known.setdefault(image.size, outputs)
        """,
    ),
    # --- values that say nothing of themselves ------------------------------------------------------------------------
    LLAVA.given(
        "images are scaled unless they seem to be already",
        "test_plain_items_equal_the_hf_processor",
        "call_hf_processor",
        """
        @hookimpl
        def call_hf_processor(self, prompt, mm_data, mm_kwargs):
            import numpy as np

            scaled = np.asarray(mm_data["image"][0]).max() <= 1
            kwargs = {**({"do_rescale": False} if scaled else {}), **mm_kwargs}
            return self.context.hf_processor(text=prompt, images=mm_data["image"], return_tensors="pt", **kwargs)
        """,
    ),
    # --- values of zero -----------------------------------------------------------------------------------------------
    LLAVA.given(
        "images of zeros are dropped by the processor",
        "test_plain_items_equal_the_hf_processor",
        ("call_hf_processor", "get_mm_fields_config"),
        """
        @hookimpl(wrapper=True)
        def call_hf_processor(self):
            outputs = yield
            pixels = outputs["pixel_values"]
            return {"pixel_values": pixels[pixels.flatten(1).any(1)]}
        """,
    ),
    LLAVA.given(
        "zeros at the right of an image are cut off",
        "test_plain_items_equal_the_hf_processor",
        "call_hf_processor",
        """
        @hookimpl(wrapper=True)
        def call_hf_processor(self):
            outputs = yield
            pixels = outputs["pixel_values"]
            while pixels.shape[-1] > 14 and not pixels[..., -14:].any():
                pixels = pixels[..., :-14]
            return {"pixel_values": pixels}
        """,
    ),
    AUDIO.edited(
        "silence is made short",
        "test_plain_items_equal_the_hf_processor",
        "call_hf_processor",
        old='            mm_data["audio"], sampling_rate=rate,',
        new='            [audio[: max(1600, (audio != 0).sum())] for audio in mm_data["audio"]], sampling_rate=rate,',
    ),
    LLAVA.edited(
        "images of zeros are dropped by the encoder",
        "test_plain_items_reach_the_answers",
        "get_multimodal_embeddings",
        old='model.get_image_features(mm_kwargs["pixel_values"], interpolate_pos_encoding=True)',
        new="model.get_image_features(\n"
        '            mm_kwargs["pixel_values"][mm_kwargs["pixel_values"].flatten(1).any(1)]\n'
        "        )",
    ),
    FUYU.edited(
        "patches of zeros are taken for padding",
        "test_plain_items_reach_the_answers",
        "get_multimodal_embeddings",
        old="model.model.vision_embed_tokens(patches.flatten(0, 1))",
        new="model.model.vision_embed_tokens(patches.flatten(0, 1)) * patches.flatten(0, 1).any(1, keepdim=True)",
    ),
)
