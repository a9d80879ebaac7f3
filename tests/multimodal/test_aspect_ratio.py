"""Images much longer than wide: taken where transformers' processor takes them, refused by name where it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pluggy
import pytest
import torch
import transformers
from PIL import Image

from corellm.config import MultiModalConfig
from corellm.errors import MediaError, MediaTooLargeError, ProcessorKwargsError
from corellm.hookspecs import ModelContext
from corellm.multimodal import DataParser
from corellm.multimodal.defaults import ProcessingChecks, ProcessingDefaults
from corellm.templates.renderer import TemplateRenderer
from tests.fixtures import random_image


@pytest.fixture(scope="module")
def processor(tiny_llava: Path) -> Any:
    """A LLaVA's: scales the shorter side to its size, and crops."""
    return transformers.AutoProcessor.from_pretrained(tiny_llava)


def call(processor: Any, image: Image.Image, mm_kwargs: dict[str, Any] | None = None, **limits: int) -> Any:
    """What the core makes of an image that it parsed."""
    config = MultiModalConfig(**limits)
    context = ModelContext(Path("."), None, None, None, None, make_processor=lambda: processor)  # type: ignore[arg-type]
    parsed = DataParser(config).parse({"image": image})["image"].get(0)
    manager = pluggy.PluginManager("corellm")
    manager.register(ProcessingDefaults(context, config, TemplateRenderer()))
    manager.register(ProcessingChecks(context, config))
    (outputs,) = manager.hook.call_hf_processor(
        prompt="<image>", mm_data={"image": [parsed]}, mm_kwargs=mm_kwargs or {}
    )
    return outputs


@pytest.mark.parametrize("size", [(201, 1), (1, 500), (3000, 5)])
def test_what_the_processor_takes_is_taken(processor: Any, size: tuple[int, int]) -> None:
    """The tensors are those of transformers."""
    image = random_image(*size, 0)
    expected = processor(text="<image>", images=[image], return_tensors="pt")
    assert torch.equal(call(processor, image)["pixel_values"], expected["pixel_values"])


def test_what_would_become_enormous_is_refused_unscaled(processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the size it would have; the operator's limit decides, and a request's own size counts."""
    edge = processor.image_processor.size.shortest_edge
    image = Image.new("RGB", (60_000, 1))
    monkeypatch.setattr(type(processor.image_processor), "resize", lambda *_, **__: pytest.fail("scaled it"))
    with pytest.raises(MediaTooLargeError, match="60000 x 1 pixels") as caught:
        call(processor, image, max_image_pixels=edge * edge * 60_000 - 1)
    assert caught.value.got == edge * edge * 60_000
    with pytest.raises(pytest.fail.Exception, match="scaled it"):
        call(processor, image, max_image_pixels=edge * edge * 60_000)
    with pytest.raises(pytest.fail.Exception, match="scaled it"):
        call(processor, image, {"size": {"shortest_edge": 1}}, max_image_pixels=60_000)


@pytest.mark.parametrize("form", ["number", "numpy", "float", "dict"])
def test_any_form_of_size_is_bounded(processor: Any, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """A plain number is the shorter side, too, as in transformers."""
    edge = processor.image_processor.size.shortest_edge
    forms = {"number": edge, "numpy": np.int64(edge), "float": float(edge), "dict": {"shortest_edge": np.int64(edge)}}
    monkeypatch.setattr(type(processor.image_processor), "resize", lambda *_, **__: pytest.fail("scaled it"))
    with pytest.raises(MediaTooLargeError):
        call(processor, Image.new("RGB", (60_000, 1)), {"size": forms[form]}, max_image_pixels=60_000)


@pytest.mark.parametrize("edge", ["x", [1], float("nan"), float("inf"), 10**400])
def test_a_size_that_is_none_is_the_requests_fault(processor: Any, edge: Any) -> None:
    """Also for an image of extreme sides."""
    with pytest.raises((MediaError, ProcessorKwargsError)):
        call(processor, Image.new("RGB", (300, 1)), {"size": {"shortest_edge": edge}})


def test_a_small_limit_of_pixels_is_for_images_as_they_come(processor: Any) -> None:
    """Usual ones are scaled up however few pixels are allowed."""
    assert "pixel_values" in call(processor, random_image(20, 20, 0), max_image_pixels=400)


def test_what_the_processor_refuses_is_the_requests_fault(processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence with the sides; of an image of usual sides the processor's own error comes through."""

    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("height and width\nmust be > 0")

    monkeypatch.setattr(type(processor.image_processor), "preprocess", refuse)
    with pytest.raises(MediaError, match="201 x 1 pixels"):
        call(processor, random_image(201, 1, 0))
    with pytest.raises(ValueError, match="height and width\nmust be > 0"):
        call(processor, random_image(200, 1, 0))
