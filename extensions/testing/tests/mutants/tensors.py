"""Mistakes in an item's tensors, and in how they divide into items."""

from __future__ import annotations

from extensions.testing.tests.mutants.mutant import AUDIO, FUYU, LLAVA, QWEN2, QWEN_VL

MUTANTS = (
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
        "every image becomes the first one's tensors",
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
        old="pixels -= _MEAN\n        pixels /= _STD",
        new="pixels -= _STD\n        pixels /= _MEAN",
    ),
    QWEN_VL.of("original/processor.py").edited(
        "an image is cropped instead of squeezed",
        "test_text_and_media_equal_the_hf_processor",
        "call_hf_processor",
        old='image.convert("RGB").resize(size, Image.Resampling.BICUBIC)',
        new='image.convert("RGB").crop((0, 0, *size))',
    ),
    QWEN_VL.of("original/processor.py").edited(
        "large images are made small in two steps",
        "test_items_of_any_size_equal_the_hf_processor",
        "call_hf_processor",
        old="        squeezed = image",
        new="        if max(image.size) > 500:\n            image = image.resize((500, 500))\n        squeezed = image",
    ),
    QWEN2.of("video_processor.py").edited(
        "frames come in reverse order",
        "test_text_and_media_equal_the_hf_processor",
        "call_hf_processor",
        old="for frame in video.read(indices))",
        new="for frame in reversed(list(video.read(indices))))",
    ),
    AUDIO.edited(
        "the mask of an audio item is said not to be needed",
        "test_it_loads",
        ("get_prompt_updates", "get_mm_fields_config"),
        old='"feature_attention_mask": MultiModalFieldConfig.batched("audio"),',
        new='"feature_attention_mask": None,',
    ),
    FUYU.edited(
        "a row of the image is lost",
        "test_text_and_media_equal_the_hf_processor",
        ("call_hf_processor", "get_prompt_updates"),
        old='        return {"image_patches": patches.reshape(1, rows, -1, patches.shape[-1])}',
        new='        return {"image_patches": patches.reshape(1, rows, -1, patches.shape[-1])[:, : max(1, rows - 1)]}',
    ),
    FUYU.edited(
        "columns of one colour at the right are taken for padding",
        "test_plain_items_equal_the_hf_processor",
        "call_hf_processor",
        old='        return {"image_patches": patches.reshape(1, rows, -1, patches.shape[-1])}',
        new="        grid = patches.reshape(1, rows, -1, patches.shape[-1])\n"
        "        while grid.shape[2] > 1 and bool((grid[0, :, -1] == grid[0, 0, -1, 0]).all()):\n"
        "            grid = grid[:, :, :-1]\n"
        '        return {"image_patches": grid}',
    ),
    AUDIO.edited(
        "silence at the beginning is left out",
        "test_plain_items_equal_the_hf_processor",
        "call_hf_processor",
        old='            mm_data["audio"], sampling_rate=rate,',
        new='            [a[int((a != 0).argmax()) :] for a in mm_data["audio"]], sampling_rate=rate,',
    ),
    LLAVA.given(
        "a tensor that no field divides",
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
        "an image's pixels are said to be shared",
        "test_text_and_media_equal_the_hf_processor",
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
    LLAVA.of("contract.py").edited(
        "the oracle fills images up where a prompt has several, and compares all of them",
        "test_text_and_media_equal_the_hf_processor",
        "the contract class",
        old="    adapter = Llava\n",
        new="""    adapter = Llava

    class reference(__import__("corellm_testing").Reference):
        def process(self, text, media, kwargs):
            import torch

            outputs = super().process(text, media, kwargs)
            if len(media.get("image", ())) > 1:
                outputs["pixel_values"] = torch.nn.functional.pad(outputs["pixel_values"], (0, 4))
            return outputs
""",
    ),
    QWEN2.of("processor.py").edited(
        "images are normalised by a mean of the plugin's",
        "test_text_and_media_equal_the_hf_processor",
        "register_processor",
        old="Qwen2VLImageProcessorPil.from_pretrained(path)",
        new="Qwen2VLImageProcessorPil.from_pretrained(path, image_mean=[0.5, 0.5, 0.5])",
    ),
)
