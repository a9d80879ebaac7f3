"""Mistakes in what a request's and the operator's processor arguments do."""

from __future__ import annotations

from extensions.testing.tests.mutants.mutant import FUYU, LLAVA, QWEN2

_EACH = "test_every_processor_argument_is_kept"
_WHERE = ("get_prompt_updates", "apply_hf_processor_tokens_only", "get_mm_kwargs_names")
"""What a message about a prompt's tokens names."""
_FUYUS = '''    def call_hf_processor(self) -> Generator[None, Mapping[str, Any], Mapping[str, Any]]:
        """The patches as `[1, rows, columns, values]`; the processor flattens them, a single one to a vector."""
        outputs = yield
'''

MUTANTS = (
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
    LLAVA.given(
        "one argument does not reach the processor",
        _EACH,
        "call_hf_processor",
        """
        @hookimpl
        def call_hf_processor(self, mm_data, mm_kwargs):
            known = {name: value for name, value in mm_kwargs.items() if name != "rescale_factor"}
            return self.context.hf_processor(images=mm_data["image"], return_tensors="pt", **known)
        """,
    ),
    LLAVA.edited(
        "of a request's size only the first image's tokens know",
        _EACH,
        _WHERE,
        old="                count = self._num_patches(",
        new="                count = 16 if index else self._num_patches(",
    ),
    QWEN2.of("settings.py").edited(
        "an argument is accepted and not used",
        _EACH,
        _WHERE,
        old="asked = {name: value for name, value in kwargs.items() if name in names}",
        new='asked = {name: value for name, value in kwargs.items() if name in names and name != "num_frames"}',
    ),
    FUYU.edited(
        "the request's size is emptied",
        _EACH,
        "call_hf_processor",
        old=_FUYUS,
        new="""    def call_hf_processor(self, mm_kwargs):
        outputs = yield
        mm_kwargs.get("size", {}).clear()
""",
    ),
    LLAVA.edited(
        "the tower's positions are for images of one size, whatever the processor crops to",
        "test_every_value_is_embedded_or_refused",
        "get_multimodal_embeddings",
        old=", interpolate_pos_encoding=True",
        new="",
    ),
    LLAVA.edited(
        "an image becomes as many tokens as one of the tower's size, whatever the processor crops to",
        "test_every_value_is_embedded_or_refused",
        "get_prompt_updates",
        old='                count = self._num_patches(out_mm_kwargs["image"][index]["pixel_values"].data)\n',
        new="                count = (self.context.hf_config.vision_config.image_size // 14) ** 2\n",
    ),
    LLAVA.edited(
        "smaller images are given as many embeddings as those of the tower's size",
        "test_every_value_is_embedded_or_refused",
        "get_multimodal_embeddings",
        old="        return features\n",
        new="        import torch\n\n        one = next(iter(features))\n"
        "        most = (self.context.hf_config.vision_config.image_size // 14) ** 2\n"
        "        filling = one.new_zeros(max(0, most - len(one)), one.shape[-1])\n"
        "        return [torch.cat([one, filling]) for one in features]\n",
    ),
    LLAVA.edited(
        "images of several sizes are filled up to the largest",
        "test_arguments_may_differ_in_a_batch",
        "get_multimodal_embeddings",
        old="        output = model.get_image_features(",
        new="""
        from torch.nn.functional import pad

        if isinstance(images := mm_kwargs["pixel_values"], list):
            most, patch = max(max(image.shape) for image in images), model.config.vision_config.patch_size
            filled = [pad(image, (0, most - image.shape[2], 0, most - image.shape[1]))[None] for image in images]
            features = [model.get_image_features(one, interpolate_pos_encoding=True).pooler_output[0] for one in filled]
            return [
                one[: image.shape[1] // patch * (image.shape[2] // patch)]
                for one, image in zip(features, images, strict=True)
            ]
        output = model.get_image_features(""",
    ),
    LLAVA.given(
        "an argument that the processor takes is not among the names",
        "test_a_requests_arguments_win",
        "get_mm_kwargs_names",
        """
        @hookimpl
        def get_mm_kwargs_names(self, modality):
            from corellm.multimodal.defaults import declared_arguments

            return declared_arguments(self.context.hf_processor, modality) - {"rescale_factor"}
        """,
    ),
    LLAVA.given(
        "the operator's arguments go before the request's",
        "test_a_requests_arguments_win",
        ("call_hf_processor", "get_prompt_updates"),
        """
        @hookimpl
        def call_hf_processor(self, mm_data, mm_kwargs):
            given = {**mm_kwargs, **self.context.kwargs_for("image")}
            return self.context.hf_processor(images=mm_data["image"], return_tensors="pt", **given)
        """,
    ),
    FUYU.edited(
        "the operator's size is emptied by a request's",
        "test_a_requests_arguments_win",
        ("call_hf_processor", "get_prompt_updates"),
        old=_FUYUS,
        new="""    def call_hf_processor(self, mm_kwargs):
        outputs = yield
        own = self.context.kwargs_for("image").get("size", {})
        if mm_kwargs.get("size") != own:
            own.clear()
""",
    ),
)
