"""Sizes of a request's processor arguments: those above what was planned for are refused before an image is made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import transformers
from PIL import Image

from corellm.errors import ProcessorKwargsError
from corellm.multimodal import check_sizes

SQUARE = {"height": 30, "width": 30}
PINPOINTS = [[56, 112], [112, 112]]


def check(mm_kwargs: dict[str, Any], operators: dict[str, Any] | None = None, **stated: Any) -> None:
    """Check arguments for images, given the operator's, and what the image processor states."""
    part = SimpleNamespace(**{"size": SQUARE, "crop_size": None, "pad_size": None, **stated})
    check_sizes(SimpleNamespace(image_processor=part), "image", operators or {}, mm_kwargs)


@pytest.mark.parametrize("name", ["size", "crop_size", "pad_size"])
def test_no_image_is_made_larger_than_planned(name: str) -> None:
    """Also by an argument that the checkpoint does not use: its images have no more than its `size`."""
    check({name: {"height": 20, "width": 45}})
    with pytest.raises(ProcessorKwargsError, match=rf"{name} .*3000.* .*30") as refused:
        check({name: {"height": 3000, "width": 30}})
    assert (refused.value.expected, refused.value.got) == (SQUARE, {"height": 3000, "width": 30})


@pytest.mark.parametrize(
    "size", [31, {"shortest_edge": 31}, {"longest_edge": 31}, [31, 30], {"height": 31, "width": 30}]
)
def test_sizes_have_many_forms(size: Any) -> None:
    """One more than planned in each of them."""
    with pytest.raises(ProcessorKwargsError):
        check({"size": size})


def test_the_operator_plans() -> None:
    """Then a request may have as much."""
    check({"size": {"shortest_edge": 50}}, {"size": {"shortest_edge": 50}})
    check({"crop_size": {"height": 50, "width": 50}}, {"crop_size": {"height": 50, "width": 50}})


@pytest.mark.parametrize(
    ("make", "mm_kwargs", "pixels"),
    [
        (lambda: transformers.CLIPImageProcessorPil(size={"shortest_edge": 30}, crop_size=SQUARE), {}, 30**2),
        (
            lambda: transformers.CLIPImageProcessorPil(size={"shortest_edge": 30}, crop_size=SQUARE),
            {"crop_size": {"height": 90, "width": 60}},
            90 * 60,
        ),
        (
            lambda: transformers.SiglipImageProcessorPil(size=SQUARE),
            {"do_pad": True, "pad_size": {"height": 90, "width": 60}},
            90 * 60,
        ),
        (
            lambda: transformers.LlavaNextImageProcessorPil(
                size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}, image_grid_pinpoints=PINPOINTS
            ),
            {"image_grid_pinpoints": [[224, 224]]},
            17 * 56**2,
        ),
    ],
)
def test_transformers_processors_would_make_more(make: Any, mm_kwargs: dict[str, Any], pixels: int) -> None:
    """What is refused is what makes an image of 40 x 30 pixels larger than the checkpoint's own arguments do."""
    part, image = make(), Image.new("RGB", (40, 30), "red")
    assert part(image, return_tensors="pt", **mm_kwargs)["pixel_values"].numel() == 3 * pixels
    processor = SimpleNamespace(image_processor=part)
    if not mm_kwargs:
        check_sizes(processor, "image", {}, {"size": {"shortest_edge": 30}, "crop_size": SQUARE})
        return
    with pytest.raises(ProcessorKwargsError, match="above"):
        check_sizes(processor, "image", {}, mm_kwargs)


def test_parts_of_an_image_are_counted() -> None:
    """A grid of parts has the largest resolution that is planned for, or a smaller one."""
    check({"image_grid_pinpoints": [[112, 112]]}, image_grid_pinpoints=PINPOINTS)
    for grid in ([[56, 112], [112, 224]], [[3360, 3360]]):
        with pytest.raises(ProcessorKwargsError, match="image_grid_pinpoints"):
            check({"image_grid_pinpoints": grid}, image_grid_pinpoints=PINPOINTS)
