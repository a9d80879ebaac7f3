"""Mistakes in an item's identity, within and between processes, and in what is kept of it."""

from __future__ import annotations

from extensions.testing.tests.mutants.mutant import FUYU, INSTRUCT_BLIP, LLAVA, QWEN2, Mutant


def _reading(wrong: str, rule: str, change: str) -> Mutant:
    """LLaVA with images that are changed when they are read."""
    return LLAVA.parsing(
        wrong,
        rule,
        "get_data_parser",
        f"""
        def load_image(self, value):
            image = super().load_image(value)
            {change}
            return image
        """,
    )


MUTANTS = (
    _reading(
        "images become grey",
        "test_identity_follows_content",
        'image = image.convert("L").convert("RGB")',
    ),
    _reading(
        "images are cropped to a corner",
        "test_different_items_share_no_blocks",
        "image = image.crop((0, 0, image.width // 4, image.height // 4))",
    ),
    INSTRUCT_BLIP.edited(
        "all prompts give one instruction",
        "test_identity_follows_the_prompt",
        "get_item_kwargs",
        old="tokenizer.decode(list(token_ids[begins:]), clean_up_tokenization_spaces=False)",
        new='""',
    ),
    INSTRUCT_BLIP.edited(
        "the time is part of the instruction",
        "test_identity_follows_the_prompt",
        "get_item_kwargs",
        old="tokenizer.decode(list(token_ids[begins:]), clean_up_tokenization_spaces=False)",
        new="str(__import__('time').perf_counter_ns())",
    ),
    INSTRUCT_BLIP.edited(
        "the Q-Former reads where an instruction begins",
        "test_identity_follows_the_prompt",
        "get_multimodal_embeddings",
        old="input_ids=torch.stack([instructions[i] for i in members]),",
        new="input_ids=torch.stack([instructions[i][:1] for i in members]),",
    ),
    _reading(
        "an image's address is part of its content",
        "test_identity_follows_content",
        'image.info["exif"] = str(id(image)).encode()',
    ),
    _reading(
        "the process id is part of an image's content",
        "test_another_process_agrees",
        'import os; image.info["exif"] = str(os.getpid()).encode()',
    ),
    _reading(
        "images lose their lowest bits",
        "test_many_items_stay_within_the_cache",
        "image = image.point(lambda value: value // 8 * 8)",
    ),
    LLAVA.given(
        "pixels depend on the hash of a string",
        "test_another_process_agrees",
        "call_hf_processor",
        """
        @hookimpl(wrapper=True)
        def call_hf_processor(self):
            outputs = yield
            return {"pixel_values": outputs["pixel_values"] + hash("pixel_values") % 10**6 / 10**6}
        """,
    ),
    LLAVA.given(
        "tensors are remembered by an image's size",
        "test_different_items_share_no_blocks",
        "call_hf_processor",
        """
        @hookimpl(wrapper=True)
        def call_hf_processor(self, mm_data):
            outputs = yield
            return self.__dict__.setdefault("known", {}).setdefault(mm_data["image"][0].size, outputs)
        """,
    ),
    LLAVA.edited(
        "an image's media is needed to place it",
        "test_a_uuid_stands_in_for_its_item",
        "get_prompt_updates",
        old="            if count is None:\n                count",
        new='            if count is None and mm_items["image"].get(index):\n                count',
    ),
    LLAVA.edited(
        "embeddings of every image are kept",
        "test_nothing_is_kept",
        "get_multimodal_embeddings",
        old="        return features\n",
        new='        self.__dict__.setdefault("kept", []).append(features)\n        return features\n',
    ),
    LLAVA.given(
        "the output of the processor is kept, of every image",
        "test_nothing_is_kept",
        "call_hf_processor",
        """
        @hookimpl(wrapper=True)
        def call_hf_processor(self):
            outputs = yield
            self.__dict__.setdefault("kept", []).append(outputs)
            return outputs
        """,
    ),
    LLAVA.given(
        "every image is kept",
        "test_nothing_is_kept",
        "call_hf_processor",
        """
        @hookimpl(wrapper=True, tryfirst=True)
        def call_hf_processor(self, mm_data):
            self.__dict__.setdefault("kept", []).extend(mm_data["image"])
            return (yield)
        """,
    ),
    LLAVA.edited(
        "copies of the embeddings are kept",
        "test_nothing_is_kept",
        "get_multimodal_embeddings",
        old="        return features\n",
        new='        self.__dict__.setdefault("kept", []).extend(part.clone() for part in features)\n'
        "        return features\n",
    ),
    FUYU.edited(
        "random numbers are seeded for all",
        "test_the_process_is_left_alone",
        "get_multimodal_embeddings",
        old="        return [model.model.vision_embed_tokens",
        new="        import torch\n\n        torch.manual_seed(0)\n        return [model.model.vision_embed_tokens",
    ),
    QWEN2.of("processor.py").edited(
        "Pillow's bound is lifted for all",
        "test_the_process_is_left_alone",
        "call_hf_processor",
        old="        given = check_arguments(kwargs)\n        outputs",
        new="        import PIL.Image\n\n        PIL.Image.MAX_IMAGE_PIXELS = 10**12\n"
        "        given = check_arguments(kwargs)\n        outputs",
    ),
    LLAVA.edited(
        "the dummy's images are drawn from everybody's random numbers",
        "test_the_process_is_left_alone",
        "get_dummy_mm_data",
        old="        size = self.context.hf_config.vision_config.image_size\n",
        new="        import random\n\n        size = self.context.hf_config.vision_config.image_size\n"
        "        random.seed(size)\n",
    ),
    LLAVA.given(
        "float32 is computed in TF32 by all models",
        "test_loading_leaves_the_process_alone",
        "load_model",
        """
        @hookimpl
        def load_model(self):
            import torch

            torch.backends.cuda.matmul.allow_tf32 = True
        """,
    ),
    QWEN2.of("processor.py").edited(
        "Pillow reads cut files once the plugin is used",
        "test_loading_leaves_the_process_alone",
        "register_processor",
        old="_MAX_ASPECT_RATIO = 200\n",
        new="__import__('PIL.ImageFile').ImageFile.LOAD_TRUNCATED_IMAGES = True\n_MAX_ASPECT_RATIO = 200\n",
    ),
    LLAVA.given(
        "warnings are switched off for the process",
        "test_loading_leaves_the_process_alone",
        "load_model",
        """
        @hookimpl
        def load_model(self):
            import warnings

            warnings.filterwarnings("ignore", category=FutureWarning)
        """,
    ),
    LLAVA.given(
        "transformers' logs are switched off for the process",
        "test_loading_leaves_the_process_alone",
        "load_model",
        """
        @hookimpl
        def load_model(self):
            from transformers.utils import logging

            logging.set_verbosity_error()
        """,
    ),
)
