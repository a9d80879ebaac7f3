"""The core's own `call_hf_processor`: the tensors of text and image, and without text where it is not needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pluggy
import pytest
import torch
import transformers

from corellm import hookspecs
from corellm.config import MultiModalConfig
from corellm.errors import ProcessorKwargsError
from corellm.hookspecs import ModelContext
from corellm.multimodal.defaults import ProcessingDefaults, check_processor_kwargs
from corellm.templates.renderer import TemplateRenderer
from tests.fixtures import random_image

IMAGE = random_image(90, 70, 0)


class Insisting(transformers.LlavaProcessor):  # type: ignore[misc]
    """Looks at the text before it looks at anything else, as Qwen2-Audio's does."""

    def validate_inputs(self, text: Any = None, images: Any = None, **kwargs: Any) -> None:
        """Counts placeholders."""
        assert sum(sample.count("<image>") for sample in text) == len(images)


def call(processor: Any) -> Any:
    """What the default makes of the image with this processor."""
    context = ModelContext(Path("."), None, None, None, None, make_processor=lambda: processor)  # type: ignore[arg-type]
    defaults = ProcessingDefaults(context, MultiModalConfig(), TemplateRenderer())
    return defaults.call_hf_processor("<image>", {"image": [IMAGE]}, {})


@pytest.mark.parametrize("insists", [False, True])
def test_dummy_text_only_where_it_is_needed(tiny_llava: Path, insists: bool) -> None:
    """The image's tensor is that of text and image; the placeholder is tokenized only for a class that looks."""
    plain = transformers.AutoProcessor.from_pretrained(tiny_llava)
    expected = plain(text="<image>", images=[IMAGE], return_tensors="pt")
    outputs = call(Insisting.from_pretrained(tiny_llava) if insists else plain)
    assert torch.equal(outputs["pixel_values"], expected["pixel_values"])
    assert ("input_ids" in outputs) == insists


@pytest.mark.parametrize("calls_itself", [False, True])
def test_arguments_are_the_processors_own(tiny_llava: Path, calls_itself: bool) -> None:
    """As it declares them, for the parts that it has; unknown beside an adapter that calls it in its own way."""
    processor = transformers.AutoProcessor.from_pretrained(tiny_llava)
    context = ModelContext(Path("."), None, None, None, None, make_processor=lambda: processor)  # type: ignore[arg-type]
    defaults = ProcessingDefaults(context, MultiModalConfig(), TemplateRenderer())
    manager = pluggy.PluginManager("corellm")
    manager.add_hookspecs(hookspecs)
    manager.register(defaults)
    if calls_itself:
        own = type("Own", (), {"call_hf_processor": hookspecs.hookimpl(lambda self, mm_kwargs: None)})
        manager.register(own())
    defaults.hooks = manager.hook
    names = manager.hook.get_mm_kwargs_names(modality="image")
    if calls_itself:
        assert names is None
    else:
        assert {"size", "do_normalize", "image_mean"} <= names
        assert not names & {"fps", "images", "text", "return_tensors"}
        assert manager.hook.get_mm_kwargs_names(modality="video") is None


def test_a_processor_of_another_kind_says_what_it_takes() -> None:
    """By the parameters of its `__call__`; where that takes any, only what is never a user's is refused."""

    class Own:
        def __call__(self, text: str, images: Any = None, return_tensors: Any = None, *, tiles: int = 1) -> None: ...

    class Anything:
        def __call__(self, text: str, **kwargs: Any) -> None: ...

    check_processor_kwargs(Own(), {"tiles": 2})
    with pytest.raises(ProcessorKwargsError) as refused:
        check_processor_kwargs(Own(), {"tiles": 2, "colour_of_the_moon": 1})
    assert (refused.value.expected, refused.value.got) == (["tiles"], ["colour_of_the_moon"])
    check_processor_kwargs(Anything(), {"colour_of_the_moon": 1})
    with pytest.raises(ProcessorKwargsError):
        check_processor_kwargs(Anything(), {"images": 1})
