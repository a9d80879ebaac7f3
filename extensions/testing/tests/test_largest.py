"""The search for the largest item: what it finds, and what it keeps of items that are refused or fail."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from corellm.errors import MediaTooLargeError
from corellm.multimodal.inputs import PlaceholderRange
from corellm_testing.argument_values import scaled
from corellm_testing.largest import Search, likely_shapes, shape_of


def tokens(place: PlaceholderRange) -> int:
    """The number of tokens."""
    return place.length


def rows_and_ends(image: Any) -> PlaceholderRange:
    """An image shrunk to fit into 240 x 210 and cut into patches of 30, each row with an end: 7 rows of 9 at most."""
    scale = min(1, 240 / image.width, 210 / image.height)
    columns, rows = (math.ceil(int(side * scale) / 30) for side in image.size)
    return PlaceholderRange(0, rows * (columns + 1))


def found(modality: str, place: Any, dummy: Any = None) -> Search:
    """A search, done."""
    search = Search(modality, 16_000, place)
    search.try_all(search.starts(dummy))
    search.climb(tokens, 100)
    return search


def test_an_uneven_ratio_is_found() -> None:
    """Neither a square nor four by three becomes as many."""
    search = found("image", rows_and_ends)
    assert search.most(tokens) == 63
    shape = search.largest(tokens)
    assert shape is not None
    assert rows_and_ends(search.item(shape)).length == 63
    first = [rows_and_ends(search.item(shape)).length for shape in search.largest_first(tokens, 3)]
    assert first[0] == 63
    assert first == sorted(set(first), reverse=True)


def test_climbing_goes_on_from_the_best() -> None:
    """A peak between the first shapes is reached."""

    def place(image: Any) -> PlaceholderRange:
        return PlaceholderRange(0, 10**6 - (image.width - 333) ** 2 - (image.height - 77) ** 2)

    search = Search("image", 0, place)
    search.try_all(search.starts(None))
    begun = search.most(tokens)
    search.climb(tokens, 500)
    assert begun < 10**6 - 1000
    assert search.most(tokens) > 10**6 - 50


@pytest.mark.parametrize("dummy", [None, (60, 50, 12, 0)])
def test_videos_of_any_length_and_rate(dummy: Any) -> None:
    """A sampled video has at most eight frames, one that is not to be sampled has up to twenty."""

    def place(video: Any) -> PlaceholderRange:
        frames, known = video
        if not known.get("do_sample_frames", True):
            if len(frames) > 20:
                raise MediaTooLargeError("too many")
            return PlaceholderRange(0, len(frames))
        return PlaceholderRange(0, min(8, math.ceil(len(frames) / known["fps"])))

    search = found("video", place, dummy)
    assert 16 <= search.most(tokens) <= 20
    assert not search.failed
    assert None in search.tried.values()


def test_what_fails_is_kept() -> None:
    """An error that is not a request's is kept with its item; others are tried all the same."""

    def place(audio: Any) -> PlaceholderRange:
        if len(audio) > 60_000:
            raise KeyError(len(audio))
        return PlaceholderRange(0, len(audio) // 160)

    search = found("audio", place, (60_000,))
    assert search.most(tokens) == 375
    assert search.failed
    assert all(samples > 60_000 for (samples,) in search.failed)
    assert found("audio", lambda audio: 1 / 0).largest(tokens) is None


def test_transformers_own_count_is_asked() -> None:
    """Nothing is said of sizes that it refuses; a processor without a count says nothing."""

    def patches(height: int, width: int, kwargs: Any) -> int:
        if max(height, width) > 50 * min(height, width):
            raise ValueError("too long")
        return -(-width // 28) + -(-height // 28)

    processor = SimpleNamespace(image_processor=SimpleNamespace(get_number_of_image_patches=patches))
    shapes = likely_shapes(processor, 5)
    counts = [patches(height, width, {}) for width, height in shapes]
    assert len(set(counts)) == 5
    assert counts == sorted(counts, reverse=True)
    assert max(shapes[0]) > 40 * min(shapes[0])
    assert likely_shapes(SimpleNamespace(), 5) == []


def test_the_shape_of_an_item_is_that_of_its_item() -> None:
    """A shape makes an item of that shape; other forms have none."""
    for modality, shape in (("image", (30, 20)), ("video", (30, 20, 4, 0)), ("audio", (500,))):
        item = Search(modality, 16_000, lambda _: PlaceholderRange(0, 1)).item(shape)
        assert shape_of(modality, item) == shape
        assert shape_of(modality, b"a file") is None


def test_sizes_are_scaled() -> None:
    """Numbers and sizes made of numbers; nothing else."""
    assert scaled({"height": 30, "width": 41}, 0.5) == {"height": 15, "width": 20}
    assert (scaled(1, 0.5), scaled(2.0, 2), scaled(7, 2)) == (1, 4.0, 14)
    assert [scaled(value, 2) for value in (True, "edge", [0.5], {"size": "large"}, None)] == [None] * 5
