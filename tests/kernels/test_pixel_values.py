"""Rescaled and normalized pixels are transformers' own, bit for bit."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image
from transformers import BlipImageProcessorPil, CLIPImageProcessorPil, SiglipImageProcessorPil, image_transforms
from transformers.image_processing_backends import PilBackend

from corellm_kernels.pixel_values import normalized, patch_processor, rescaled

FIRST = {"data_format": "channels_first", "input_data_format": "channels_first"}
SCALES = st.sampled_from([1 / 255, 1 / 127.5, 0.003]) | st.floats(1e-6, 10)
FACTORS = st.floats(0.01, 10)


def images(dtype: Any = np.uint8) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    """`[channels, height, width]`, in the order of axes that Pillow's pixels have."""
    shapes = st.tuples(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3, 4]))
    elements = st.floats(-1e6, 1e6, width=32) if dtype is np.float32 else None
    return arrays.arrays(dtype, shapes, elements=elements).map(lambda pixels: pixels.transpose(2, 0, 1))


def same(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> bool:
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()


@given(images() | images(np.float32), SCALES)
def test_rescaled(image: np.ndarray[Any, Any], scale: float) -> None:
    before = image.copy()
    ours = rescaled(image, scale)
    assert same(ours, image_transforms.rescale(image, scale, **FIRST))
    assert (image == before).all()
    assert not np.shares_memory(ours, image)


@given(images(np.float32), st.data())
def test_normalized(image: np.ndarray[Any, Any], data: st.DataObject) -> None:
    before = image.copy()
    several = st.lists(FACTORS, min_size=len(image), max_size=len(image))
    mean, std = data.draw(several), data.draw(several)
    ours = normalized(image, mean, std)
    assert same(ours, image_transforms.normalize(image, mean, std, **FIRST))
    assert (image == before).all()
    assert not np.shares_memory(ours, image)


PIXELS = np.arange(24, dtype=np.uint8).reshape(3, 2, 4)
ODD_CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("rescale", (PIXELS, None)), ("rescale", (PIXELS, "0.5")), ("rescale", (PIXELS.tolist(), 0.5)),
    ("rescale", (PIXELS, 2)), ("rescale", (PIXELS, np.float32(0.5))), ("normalize", (PIXELS, 0.5, 0.5)),
    ("normalize", (PIXELS / 255, [0.5] * 3, [0.5] * 3)), ("normalize", (PIXELS.astype(np.float32), [0.5], 0.5)),
    ("normalize", (PIXELS.astype(np.float32), "123", 1.0)), ("normalize", (PIXELS.astype(np.float32), 1, [1, 2, 3])),
    ("normalize", (PIXELS.astype(np.float32), 0.5, [0.1, 0.2, 0.3])),
]  # fmt: skip


@pytest.mark.parametrize(("method", "arguments"), ODD_CALLS)
def test_what_is_not_ordinary_is_left_to_transformers(method: str, arguments: tuple[Any, ...]) -> None:
    """Same values or same error."""
    results = []
    quick = CLIPImageProcessorPil()
    patch_processor(quick)
    for processor in (quick, CLIPImageProcessorPil()):
        try:
            results.append(getattr(processor, method)(*arguments))
        except Exception as error:
            results.append(f"{type(error).__name__}: {error}")
    ours, theirs = results
    assert ours == theirs if isinstance(ours, str) else same(ours, theirs)


@pytest.mark.parametrize("arguments", [{}, {"do_rescale": False}, {"do_normalize": False}, {"do_resize": False}])
@pytest.mark.parametrize("kind", [CLIPImageProcessorPil, BlipImageProcessorPil])
def test_quickened_processors_give_what_they_gave(kind: Any, arguments: dict[str, bool]) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (240, 260, 3), np.uint8))
    plain, quick = kind(), kind()
    patch_processor(SimpleNamespace(image_processor=quick))
    assert type(quick).rescale is not PilBackend.rescale
    assert isinstance(quick, kind)
    ours, theirs = (each(image, return_tensors="np", **arguments)["pixel_values"] for each in (quick, plain))
    assert same(ours, theirs)


def test_quickened_processors_are_saved_as_they_were(tmp_path: Path) -> None:
    plain, quick = CLIPImageProcessorPil(), CLIPImageProcessorPil()
    patch_processor(quick)
    for name, processor in (("plain", plain), ("quick", quick)):
        processor.save_pretrained(tmp_path / name)
    saved = [json.loads((tmp_path / name / "preprocessor_config.json").read_text()) for name in ("plain", "quick")]
    assert saved[0] == saved[1]
    assert repr(plain) == repr(quick)


def test_quickened_processors_are_pickled_and_copied() -> None:
    quick = CLIPImageProcessorPil(size={"shortest_edge": 30})
    patch_processor(quick)
    for other in (pickle.loads(pickle.dumps(quick)), copy.deepcopy(quick)):
        assert type(other) is type(quick)
        assert other.to_dict() == quick.to_dict()
        assert other.__dict__ is not quick.__dict__


SIZES: list[tuple[type[Any], dict[str, Any]]] = [
    (CLIPImageProcessorPil, {}),
    (CLIPImageProcessorPil, {"size": {"shortest_edge": 30}, "crop_size": {"height": 40, "width": 20}}),
    (CLIPImageProcessorPil, {"size": {"shortest_edge": 30, "longest_edge": 50}}),
    (CLIPImageProcessorPil, {"resample": 0}),
    (CLIPImageProcessorPil, {"do_resize": False}),
    (CLIPImageProcessorPil, {"size": {"max_height": 50, "max_width": 70}}),
    (SiglipImageProcessorPil, {}),
    (SiglipImageProcessorPil, {"size": {"height": 31, "width": 57}, "resample": Image.Resampling.LANCZOS}),
    (BlipImageProcessorPil, {}),
]


@pytest.mark.parametrize(("kind", "arguments"), SIZES)
def test_images_are_resized_as_they_were(kind: Any, arguments: dict[str, Any]) -> None:
    """Images of any proportions and mode, one or several, get transformers' pixels; those given stay as they are."""
    rng = np.random.default_rng(0)
    quick = kind()
    patch_processor(quick)
    for shape in ((240, 260, 3), (61, 400, 3), (300, 50, 3), (224, 224, 3), (7, 5, 3), (90, 80)):
        image = Image.fromarray(rng.integers(0, 256, shape, np.uint8))
        before = image.tobytes()
        for call in (image, [image], [image, image.transpose(Image.Transpose.ROTATE_90)]):
            ours, theirs = (list(each(call, **arguments)["pixel_values"]) for each in (quick, kind()))
            assert len(ours) == len(theirs)
            assert all(map(same, ours, theirs))
        assert image.tobytes() == before


def test_an_image_is_made_no_array_before_it_is_resized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where transformers' resizing of arrays is not called at all, none was made."""
    monkeypatch.setattr(PilBackend, "resize", None)
    quick = CLIPImageProcessorPil()
    patch_processor(quick)
    assert np.shape(quick([Image.new("RGB", (300, 280))])["pixel_values"]) == (1, 3, 224, 224)


class OwnResize(CLIPImageProcessorPil):  # type: ignore[misc]
    __module__ = "transformers.models.own"

    def resize(self, image: np.ndarray[Any, Any], *args: Any, **kwargs: Any) -> np.ndarray[Any, Any]:
        return np.zeros((3, 224, 224), np.uint8)


def test_a_processor_resizes_in_a_way_of_its_own() -> None:
    """One step between call and pixels that is overridden is enough."""
    quick = OwnResize(do_normalize=False)
    patch_processor(quick)
    assert type(quick).rescale is not PilBackend.rescale
    assert not np.any(quick([Image.new("RGB", (300, 280), "white")])["pixel_values"])


class OwnWay(CLIPImageProcessorPil):  # type: ignore[misc]
    def rescale(self, image: np.ndarray[Any, Any], scale: float, **kwargs: Any) -> np.ndarray[Any, Any]:
        return image * 2.0


def test_processors_keep_ways_of_their_own() -> None:
    processor = OwnWay()
    patch_processor(processor)
    patch_processor(SimpleNamespace())  # one without images
    assert type(processor) is OwnWay
