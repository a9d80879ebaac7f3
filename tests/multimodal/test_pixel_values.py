"""Rescaled and normalized pixels are transformers' own, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image
from transformers import BlipImageProcessorPil, CLIPImageProcessorPil, image_transforms
from transformers.image_processing_backends import PilBackend

from corellm.multimodal.pixel_values import normalized, quicken, rescaled

FIRST = {"data_format": "channels_first", "input_data_format": "channels_first"}
SCALES = st.sampled_from([1 / 255, 1 / 127.5, 0.003]) | st.floats(1e-6, 10)
FACTORS = st.floats(0.01, 10)


def pictures(dtype: Any = np.uint8) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    """`[channels, height, width]`, in the order of axes that Pillow's pixels have."""
    shapes = st.tuples(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3, 4]))
    elements = st.floats(-1e6, 1e6, width=32) if dtype is np.float32 else None
    return arrays.arrays(dtype, shapes, elements=elements).map(lambda pixels: pixels.transpose(2, 0, 1))


def same(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> bool:
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()


@given(pictures() | pictures(np.float32), SCALES)
def test_rescaled(picture: np.ndarray[Any, Any], scale: float) -> None:
    before = picture.copy()
    ours = rescaled(picture, scale)
    assert same(ours, image_transforms.rescale(picture, scale, **FIRST))
    assert (picture == before).all()
    assert not np.shares_memory(ours, picture)


@given(pictures(np.float32), st.data())
def test_normalized(picture: np.ndarray[Any, Any], data: st.DataObject) -> None:
    before = picture.copy()
    several = st.lists(FACTORS, min_size=len(picture), max_size=len(picture))
    mean, std = data.draw(FACTORS | several), data.draw(FACTORS | several)
    ours = normalized(picture, mean, std)
    assert same(ours, image_transforms.normalize(picture, mean, std, **FIRST))
    assert (picture == before).all()
    assert not np.shares_memory(ours, picture)


def test_normalized_refuses_too_few_means() -> None:
    with pytest.raises(ValueError, match="mean must have 3 elements, one per channel, got 2"):
        normalized(np.zeros((3, 1, 1), np.float32), [0.5, 0.5], 1.0)


@pytest.mark.parametrize("arguments", [{}, {"do_rescale": False}, {"do_normalize": False}, {"do_resize": False}])
@pytest.mark.parametrize("kind", [CLIPImageProcessorPil, BlipImageProcessorPil])
def test_quickened_processors_give_what_they_gave(kind: Any, arguments: dict[str, bool]) -> None:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (240, 260, 3), np.uint8))
    plain, quick = kind(), kind()
    quicken(SimpleNamespace(image_processor=quick))
    assert type(quick).rescale is not PilBackend.rescale
    assert isinstance(quick, kind)
    ours, theirs = (each(picture, return_tensors="np", **arguments)["pixel_values"] for each in (quick, plain))
    assert same(ours, theirs)


def test_quickened_processors_are_saved_as_they_were(tmp_path: Path) -> None:
    plain, quick = CLIPImageProcessorPil(), CLIPImageProcessorPil()
    quicken(quick)
    for name, processor in (("plain", plain), ("quick", quick)):
        processor.save_pretrained(tmp_path / name)
    saved = [json.loads((tmp_path / name / "preprocessor_config.json").read_text()) for name in ("plain", "quick")]
    assert saved[0] == saved[1]
    assert repr(plain) == repr(quick)


class OwnWay(CLIPImageProcessorPil):  # type: ignore[misc]
    def rescale(self, image: np.ndarray[Any, Any], scale: float, **kwargs: Any) -> np.ndarray[Any, Any]:
        return image * 2.0


def test_processors_keep_ways_of_their_own() -> None:
    processor = OwnWay()
    quicken(processor)
    quicken(SimpleNamespace())  # one without pictures
    assert type(processor) is OwnWay
