"""Mistakes that show from request to request: arguments, and what should be the same every time."""

from __future__ import annotations

from tests.mutants.mutant import LLAVA, QWEN2

MUTANTS = (
    # --- arguments ----------------------------------------------------------------------------------------------------
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
        "arguments given at start are thought to be in effect already",
        "test_operators_arguments_hold_for_every_request",
        ("call_hf_processor", "get_prompt_updates"),
        """
        @hookimpl
        def call_hf_processor(self, prompt, mm_data, mm_kwargs):
            own = {name: value for name, value in mm_kwargs.items() if name not in self.context.mm_processor_kwargs}
            return self.context.hf_processor(text=prompt, images=mm_data["image"], return_tensors="pt", **own)
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
    QWEN2.of("settings.py").edited(
        "arguments of images are said to be videos' alone",
        "test_processor_arguments_mean_what_they_mean",
        "get_mm_kwargs_names",
        old='FOR_IMAGES = ("max_pixels", "min_pixels", "size")',
        new="FOR_IMAGES = ()",
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
    # --- the same every time ------------------------------------------------------------------------------------------
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
    LLAVA.given(
        "a bare image is cut into rows",
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
