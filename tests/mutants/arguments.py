"""Mistakes in what a request's and the operator's processor arguments do."""

from __future__ import annotations

from tests.mutants.mutant import FUYU, LLAVA, QWEN2

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
