"""Videos as requests bring them: every form, told apart and counted unopened; metadata, reading, identity, defaults."""

from __future__ import annotations

import base64
import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from corellm.config import EngineConfig, MultiModalConfig
from corellm.errors import ConfigError, EmbeddingInputError, MediaError, MediaTooLargeError
from corellm.media.frames import load_frames
from corellm.multimodal import DataParser, MediaItems, Video, dummy_videos
from corellm.multimodal.defaults import video_arguments
from corellm.multimodal.hashing import hash_item
from corellm.multimodal.items import EmbeddingItems
from corellm_media.video.files import load_video
from extensions.media.tests.videos import HEIGHT, WIDTH, encode, plain, same_colour

ARRAY = np.stack([plain(n) for n in range(4)])
TENSOR = torch.from_numpy(ARRAY.copy())
IMAGES = [Image.fromarray(frame) for frame in ARRAY]
LIMITS = MultiModalConfig()


@functools.cache
def file() -> bytes:
    """The same frames in a file."""
    return encode(list(ARRAY), "mjpeg", "mov", pixels="yuvj444p")


def data_url(data: bytes) -> str:
    """A file in an address."""
    return "data:video/mp4;base64," + base64.b64encode(data).decode()


def parse(value: Any, **limits: int) -> list[Video]:
    """The videos under `"video"`; counted alike without being read."""
    parser = DataParser(MultiModalConfig(**limits), hidden_size=16)
    counts = parser.count({"video": value})
    items = parser.parse({"video": value})
    assert items.get_counts() == counts
    return [items["video"].get(i) for i in range(len(items["video"]))]


# --- forms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (ARRAY, 1), (TENSOR, 1), (TENSOR.permute(0, 3, 1, 2), 1), (np.moveaxis(ARRAY, -1, 1), 1),
        (ARRAY.astype(np.float32) / 255, 1), (IMAGES, 1), (tuple(IMAGES), 1), (list(ARRAY), 1), (list(TENSOR), 1),
        ([IMAGES[0], *ARRAY[1:]], 1), ((ARRAY, {"fps": 2}), 1), ((IMAGES, {}), 1),
        ([ARRAY, ARRAY], 2), ([IMAGES, IMAGES], 2), ([(ARRAY, {"fps": 2}), (IMAGES, {})], 2),
        (np.stack([ARRAY, ARRAY, ARRAY]), 3), (torch.stack([TENSOR, TENSOR]), 2), ([], 0),
    ],
)  # fmt: skip
def test_videos_in_any_form(value: Any, count: int) -> None:
    """The same frames come out of each, one after the other, and they are the reader's own."""
    videos = parse(value)
    assert len(videos) == count
    for video in videos:
        assert (video.num_frames, video.metadata.width, video.metadata.height) == (4, WIDTH, HEIGHT)
        frames = video.read()
        assert isinstance(frames, Iterator)
        for n, frame in enumerate(frames):
            assert same_colour(frame, n)
            frame[:] = 0
        assert same_colour(next(video.read([2])), 2)


@pytest.mark.parametrize(
    ("form", "count"),
    [
        (bytes, 1), (bytearray, 1), (memoryview, 1), (data_url, 1), (lambda file: [file, file], 2),
        (lambda file: (file, data_url(file)), 2),
        (lambda file: [ARRAY, IMAGES, file, data_url(file), (TENSOR, {})], 5),
    ],
)  # fmt: skip
def test_files_in_any_form(form: Callable[[bytes], Any], count: int) -> None:
    """As frames are."""
    test_videos_in_any_form(form(file()), count)


def test_paths_and_no_addresses(tmp_path: Path) -> None:
    """Strings are paths; nothing is fetched."""
    path = tmp_path / "file.mov"
    path.write_bytes(file())
    assert [video.num_frames for video in parse([path, str(path)])] == [4, 4]
    with pytest.raises(MediaError, match="video 0: this URL"):
        parse("https://example.com/file.mp4")


def test_what_is_given_may_change_afterwards() -> None:
    """Frames are copied when they are parsed: identity and content stay together."""
    array = ARRAY.copy()
    (video,) = parse(array)
    array[:] = 0
    assert same_colour(next(video.read([3])), 3)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([IMAGES[0], b"file"], r"^video: .*number 0 is, number 1 is not"),
        ([[]], "^video 0: .*no frames"),
        (ARRAY[:0], "^video 0: .*no frames"),
        (ARRAY[0], "^video 0: frame 0|^video 0: shape"),
        ([ARRAY, None], "^video 1: None"),
        ([ARRAY, 5], "^video 1: int"),
        ([[IMAGES[0], IMAGES[1].resize((9, 9))]], r"^video 0: frame 1 .*9 x 9 .*64 x 48"),
        (ARRAY.astype(np.float32), "^video 0: frame 1: .*float32 .*0 to 1"),
        ([[IMAGES[0], "x"]], "^video 0: frame 1: str"),
        ([b"", b"file"], r"^video 0: .*empty"),
        ([ARRAY, b"file"], "^video 1: .*not an MP4"),
        ((b"file", {"fps": 3}), "^video 0: metadata"),
        (torch.zeros(5, 16), r"^video 0: shape \(5, 16\) .*'video_embeds'"),
        (np.zeros((2, 0, 4, 3), np.uint8), "^video 0: frame 0: .*empty"),
    ],
)
def test_what_is_no_video(value: Any, words: str) -> None:
    """Named by item, and by frame where one is to blame."""
    with pytest.raises(MediaError, match=words) as caught:
        parse(value)
    assert caught.value.modality == "video"


def test_counting_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """So limits on numbers of items come first."""
    for name in ("load_frames", "media_reader"):
        monkeypatch.setattr(f"corellm.multimodal.parsing.{name}", lambda *_: pytest.fail("opened a video"))
    assert DataParser().count({"video": ["no such file", b"", ARRAY, (ARRAY, {})]}) == {"video": 4}


def test_embeddings() -> None:
    """Under their own key, as for every modality."""
    items = DataParser(hidden_size=16).parse({"video_embeds": torch.zeros(2, 5, 16)})
    assert isinstance(items["video"], EmbeddingItems)
    assert items["video"].num_embeddings(1) == 5
    with pytest.raises(EmbeddingInputError, match=r"video 0: .* 16, got 15"):
        DataParser(hidden_size=16).parse({"video_embeds": [torch.zeros(5, 15)]})


def test_dummies() -> None:
    """Dummy videos have the size asked for; no two frames are alike, no two videos one array."""
    videos = dummy_videos(2, width=12, height=8, num_frames=3)
    assert [video.shape for video in videos] == [(3, 8, 12, 3)] * 2
    assert not np.shares_memory(*videos)
    assert len({frame.tobytes() for frame in videos[0]}) == 3
    assert isinstance(DataParser().parse({"video": videos})["video"], MediaItems)


# --- limits -----------------------------------------------------------------------------------------------------------


def test_limits() -> None:
    """Limits of pixels and bytes hold when a video is parsed, those of frames when it is read."""
    with pytest.raises(MediaTooLargeError, match=r"video 0: frame 0: .* 3072 pixels, .* 3000"):
        parse(ARRAY, max_video_pixels=3000)
    for form in (ARRAY, IMAGES):
        with pytest.raises(MediaTooLargeError, match=r"36864 bytes .* 36863"):
            parse([form], max_video_bytes=4 * 64 * 48 * 3 - 1)
    for form in (ARRAY, file()):
        (video,) = parse([form], max_video_frames=3)
        with pytest.raises(MediaTooLargeError, match=r"4 frames .* 3 allowed"):
            video.read()
        with pytest.raises(MediaTooLargeError, match="5 frames"):
            video.read([0] * 5)
        assert len(list(video.read([0, 1, 3]))) == 3


@pytest.mark.parametrize(
    "name", ["max_video_pixels", "max_video_frames", "max_video_decoded_pixels", "max_video_bytes"]
)
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "9"])
def test_limits_are_checked_at_the_start(name: str, value: Any) -> None:
    """By name."""
    with pytest.raises(ConfigError, match=f"^{name} "):
        EngineConfig.from_kwargs(model="m", **{name: value})


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["frames", "file"])
def test_indices(form: str) -> None:
    """Ascending, repeats allowed, each an array of its own; anything else is the caller's mistake."""
    (video,) = parse([ARRAY if form == "frames" else file()])
    for chosen in ([0, 0, 2, 2, 2, 3], [3], [], np.array([1, 3]), range(0, 4, 2)):
        frames = list(video.read(chosen))
        assert len(frames) == len(chosen)
        for n, frame in zip(chosen, frames, strict=True):
            assert same_colour(frame, int(n))
            frame[:] = 255
    for wrong in ([1, 0], [-1], [4], [0, 9]):
        with pytest.raises(ValueError, match=r"descend|video of 4"):
            video.read(wrong)
        with pytest.raises(ValueError, match=r"descend|video of 4"):
            video.timestamps(wrong)


def test_times_of_frames() -> None:
    """By the rate, of a sample by where its frames were taken; without a rate there are none."""
    assert load_frames((ARRAY, {"fps": 8}), LIMITS).timestamps([0, 1, 1, 3]) == [0, 0.125, 0.125, 0.375]
    sample = load_frames((ARRAY, {"fps": 8, "frames_indices": [0, 4, 8, 20], "total_num_frames": 24}), LIMITS)
    assert sample.timestamps(range(4)) == [0, 0.5, 1, 2.5]
    with pytest.raises(MediaError, match=r"\(frames, \{'fps': ...\}\)"):
        load_frames(ARRAY, LIMITS).timestamps([0])


# --- metadata ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ({}, {"total_num_frames": 4, "fps": None, "duration": None}),
        ({"fps": 8}, {"fps": 8.0, "duration": 0.5}),
        ({"fps": np.float32(8), "duration": None}, {"fps": 8.0, "duration": 0.5}),
        ({"duration": 3}, {"duration": 3.0, "fps": None}),
        ({"do_sample_frames": False}, {"do_sample_frames": False}),
        ({"frames_indices": np.arange(4) * 2, "total_num_frames": 99}, {"frames_indices": (0, 2, 4, 6)}),
        ({"frames_indices": (1, 1, 2, 9)}, {"total_num_frames": 10, "frames_indices": (1, 1, 2, 9)}),
        ({"frames_indices": torch.arange(4), "fps": 10, "duration": 2.0}, {"total_num_frames": 20}),
        ({"width": 1, "video_backend": "x", "total_num_frames": np.int64(4)}, {"width": WIDTH, "height": HEIGHT}),
    ],
)  # fmt: skip
def test_metadata(given: dict[str, Any], known: dict[str, Any]) -> None:
    """As transformers names it; what follows from the rest need not be said."""
    metadata = dataclasses.asdict(load_frames((ARRAY, given), LIMITS).metadata)
    assert metadata | known == metadata


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"frame_rate": 8}, "'frame_rate'; .*fps, frames_indices, total_num_frames, duration"),
        ({"fps": 0}, "fps .*0.0001 to 100000, got 0"),
        ({"fps": float("inf")}, "fps "),
        ({"fps": "8"}, "fps .*'8'"),
        ({"duration": -1}, "duration "),
        ({"total_num_frames": 5}, "total_num_frames is 5 for 4 .*frames_indices"),
        ({"total_num_frames": 4.0}, "total_num_frames "),
        ({"frames_indices": [0, 1]}, "2 frames_indices for 4 frames"),
        ({"frames_indices": [0, 1, 2, 9], "total_num_frames": 9}, "frames_indices has 9, but total_num_frames is 9"),
        ({"frames_indices": [3, 2, 1, 0]}, "frames_indices must ascend"),
        ({"frames_indices": [-1, 0, 1, 2]}, "frames_indices .* ascend from 0"),
        ({"frames_indices": [0.0, 1.0, 2.0, 3.0]}, "frames_indices .*integers"),
        ({"fps": 1e-300}, "fps "),
        ({"fps": 10**400}, "fps .*very large number"),
        ({"total_num_frames": 10**400}, "total_num_frames .*1 to 1000000000, .*very large"),
        ({"frames_indices": [0, 1, 2, 10**30]}, "frames_indices .*below 1000000000"),
        ({"frames_indices": range(10**9)}, "1000000000 frames_indices for 4 frames"),
        ({"frames_indices": "0123"}, "frames_indices .*integers"),
        ({"do_sample_frames": 0}, "do_sample_frames .*got 0"),
    ],
)
def test_metadata_that_cannot_be(given: dict[str, Any], words: str) -> None:
    """Refused by name, with the item."""
    with pytest.raises(MediaError, match=f"^video 0: .*{words}"):
        parse((ARRAY, given))


# --- identity ---------------------------------------------------------------------------------------------------------


def identity(value: Any) -> str:
    """The hash of one video."""
    (video,) = parse([value])
    return hash_item(video, modality="video", kwargs={}, namespace=("m",))


def test_equal_videos_have_equal_hashes(tmp_path: Path) -> None:
    """However they come: a file by its bytes, frames by their pixels."""
    path = tmp_path / "file"
    path.write_bytes(file())
    assert len({identity(form) for form in (file(), bytearray(file()), path, str(path), data_url(file()))}) == 1
    assert len({identity(form) for form in (ARRAY, TENSOR, IMAGES, list(ARRAY), (ARRAY, {}))}) == 1


def test_different_videos_have_different_hashes() -> None:
    """Whatever differs: a pixel, the order, the rate, the sample, the wish; a file is not its frames."""
    pixel = ARRAY.copy()
    pixel[3, 0, 0, 0] ^= 1
    taller = ARRAY.reshape(4, WIDTH, HEIGHT, 3)
    forms = [
        file(), file() + b"\0\0\0\x08free", ARRAY, pixel, ARRAY[::-1], ARRAY[:3], taller,
        (ARRAY, {"fps": 2}), (ARRAY, {"fps": 3}), (ARRAY, {"duration": 2}), (ARRAY, {"frames_indices": [0, 1, 2, 3]}),
        (ARRAY, {"frames_indices": [0, 1, 2, 3], "total_num_frames": 5}), (ARRAY, {"do_sample_frames": True}),
        (ARRAY, {"do_sample_frames": False}),
    ]  # fmt: skip
    assert len({identity(form) for form in forms}) == len(forms)


# --- what a Hugging Face processor is given ---------------------------------------------------------------------------


def test_all_frames_for_a_processor_that_samples_itself() -> None:
    """One array and its metadata under transformers' names; a sample is not to be sampled again."""
    from transformers.video_utils import VideoMetadata

    arguments = video_arguments(load_video(file(), LIMITS), 10**6)
    assert sorted(arguments) == ["video_metadata", "videos"]
    (frames,) = arguments["videos"]
    assert (frames.shape, frames.dtype) == (ARRAY.shape, np.uint8)
    assert all(same_colour(frame, n) for n, frame in enumerate(frames))
    assert VideoMetadata(**arguments["video_metadata"][0]).timestamps == pytest.approx([0, 0.04, 0.08, 0.12])
    sample = video_arguments(load_frames((ARRAY, {"frames_indices": [1, 2, 3, 9]}), LIMITS), 10**6)
    assert sample["do_sample_frames"] is False
    assert sample["video_metadata"][0]["frames_indices"] == [1, 2, 3, 9]
    wish = video_arguments(load_frames((ARRAY, {"do_sample_frames": True}), LIMITS), 10**6)
    assert wish["do_sample_frames"] is True
    with pytest.raises(MediaTooLargeError, match=r"4 frames .* 36864 bytes, .* 36863"):
        video_arguments(load_video(file(), LIMITS), 36863)
