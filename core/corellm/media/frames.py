"""Frames in memory, and their metadata, to a `Video`.

Knows the forms and the metadata keys; `image` reads single frames. Mutable input is copied, up to a limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from corellm.config import MultiModalConfig
from corellm.errors import MediaError, MediaTooLargeError
from corellm.media.type_checks import is_array, is_image, is_tensor
from corellm.media.video import Video, VideoMetadata

if TYPE_CHECKING:
    import numpy as np

_KEYS = ("fps", "frames_indices", "total_num_frames", "duration", "do_sample_frames")
_BOUNDS = {"fps": (1e-4, 1e5), "duration": (1e-6, 1e9)}
_MOST_FRAMES = 10**9
_IGNORED_KEYS = ("width", "height", "video_backend")  # transformers' metadata have them


def is_frame(value: object) -> bool:
    """Whether a value can be one frame of a video: an image, or an array or tensor `[h, w, c]` or `[c, h, w]`."""
    return is_image(value) or ((is_array(value) or is_tensor(value)) and value.ndim == 3)


def is_frames_and_metadata(value: object) -> bool:
    """Whether a value is `(frames, metadata)`."""
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Mapping)


def load_frames(source: Any, limits: MultiModalConfig) -> Video:
    """Return a video of frames.

    Args:
        source: an array `[frames, h, w, 3]`, a tensor `[frames, 3, h, w]` or `[frames, h, w, 3]`, or a list of whatever
            `image.load_image` takes but paths and bytes; or `(frames, metadata)`, with any of the keys fps,
            frames_indices, total_num_frames, duration and do_sample_frames.
        limits: those named `max_video_` count.

    Raises:
        MediaTooLargeError: more bytes, pixels or frames.
        MediaError: no frames; frames of different sizes; unknown metadata, or metadata that contradict the frames.
    """
    given: Mapping[str, Any] = {}
    if is_frames_and_metadata(source):
        source, given = source
        if not (is_array(source) or is_tensor(source) or isinstance(source, (list, tuple))):
            raise MediaError("metadata go with frames only; a file has its own")
    if is_array(source) or is_tensor(source):
        if source.ndim != 4:
            raise MediaError(
                f"shape {tuple(source.shape)} is not a video's, [frames, height, width, 3] (precomputed embeddings go "
                "under 'video_embeds')",
                got=tuple(source.shape),
            )
        return _from_frames(source, given, limits)
    if isinstance(source, (list, tuple)):
        return _from_frames(source, given, limits)
    raise MediaError(
        f"{type(source).__name__} is not a video; give a path, bytes, or frames as an array or a list of images",
        got=type(source).__name__,
    )


def check_bytes(count: int, max_bytes: int) -> None:
    """Refuse a video that takes more bytes of memory than `max_video_bytes`."""
    if count > max_bytes:
        raise MediaTooLargeError(
            f"the video takes {count} bytes of memory, more than the {max_bytes} allowed (max_video_bytes)",
            expected=max_bytes,
            got=count,
        )


class FramesInMemory:
    """A `FrameSource` of pixels, `[frames, height, width, 3]` uint8."""

    times = None

    def __init__(self, pixels: np.ndarray[Any, Any]) -> None:
        self._pixels = pixels

    def read(self, numbers: Sequence[int]) -> Iterator[np.ndarray[Any, Any]]:
        """Yield copies of frames."""
        for number in numbers:
            yield self._pixels[number].copy()


def _from_frames(frames: Any, given: Mapping[str, Any], limits: MultiModalConfig) -> Video:
    import numpy as np

    from corellm.media.image import load_image

    count = len(frames)
    if not count:
        raise MediaError("the video has no frames")
    metadata: VideoMetadata | None = None
    for number, frame in enumerate(frames):
        try:
            if not is_frame(frame):
                raise MediaError(f"{type(frame).__name__} is not an image or an array of one")
            image = load_image(frame, limits.max_video_pixels)
        except MediaError as error:
            error.args = (f"frame {number}: {error}",)
            raise
        if metadata is None:
            check_bytes(count * image.width * image.height * 3, limits.max_video_bytes)
            metadata = _metadata(given, count, *image.size)
            pixels = np.empty((count, image.height, image.width, 3), np.uint8)
            if is_array(frames) and frames.dtype == np.uint8 and frames.shape == pixels.shape:
                pixels[:] = frames  # as they are: an image of each would be two more copies
                break
        elif image.size != (metadata.width, metadata.height):
            raise MediaError(
                f"frame {number} has {image.width} x {image.height} pixels, the first has {metadata.width} x "
                f"{metadata.height}; the frames of a video must be of one size"
            )
        pixels[number] = np.asarray(image)
    assert metadata is not None
    content = ("frames", pixels, asdict(metadata))
    return Video(FramesInMemory(pixels), metadata, max_frames=limits.max_video_frames, content=content)


# --- metadata ---------------------------------------------------------------------------------------------------------


def _metadata(given: Mapping[str, Any], count: int, width: int, height: int) -> VideoMetadata:
    """The user's metadata of `count` frames, checked. None under a key is the same as no key."""
    unknown = [key for key in given if key not in (*_KEYS, *_IGNORED_KEYS)]
    if unknown:
        raise MediaError(f"unknown metadata {', '.join(map(repr, unknown))}; known: {', '.join(_KEYS)}")
    fps, duration = (_within(key, given.get(key), *bounds) for key, bounds in _BOUNDS.items())
    total = given.get("total_num_frames")
    sample = _sample(given.get("frames_indices"), count)
    if total is None:
        total = count if sample is None else max(sample[-1] + 1, round((fps or 0) * (duration or 0)))
    if isinstance(total, bool) or not isinstance(total, Integral) or not 0 < int(total) <= _MOST_FRAMES:
        raise MediaError(f"metadata: total_num_frames must be an integer from 1 to {_MOST_FRAMES}, got {_shown(total)}")
    if sample is None and total != count:
        raise MediaError(f"metadata: total_num_frames is {total} for {count} frames; give frames_indices, too")
    if sample is not None and sample[-1] >= total:
        raise MediaError(f"metadata: frames_indices has {sample[-1]}, but total_num_frames is {total}")
    wish = given.get("do_sample_frames")
    if wish is not None and not isinstance(wish, bool):
        raise MediaError(f"metadata: do_sample_frames must be True or False, got {wish!r:.100}")
    if duration is None and fps is not None:
        duration = int(total) / fps
    return VideoMetadata(int(total), fps, width, height, duration, sample, wish)


def _within(key: str, value: Any, least: float, most: float) -> float | None:
    if value is None:
        return None
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        raise MediaError(f"metadata: {key} must be a number from {least:g} to {most:g}, got {_shown(value)}")
    return float(value)


def _shown(value: Any) -> str:
    """A value for a message; Python refuses to write out very long integers."""
    return "a very large number" if isinstance(value, int) and value > _MOST_FRAMES else f"{value!r:.100}"


def _sample(indices: Any, count: int) -> tuple[int, ...] | None:
    if indices is None:
        return None
    if is_array(indices) or is_tensor(indices):
        indices = indices.tolist()
    if isinstance(indices, (list, tuple, range)) and len(indices) != count:
        raise MediaError(f"metadata: {len(indices)} frames_indices for {count} frames")
    if not isinstance(indices, (list, tuple, range)) or not all(
        isinstance(index, Integral) and not isinstance(index, bool) and int(index) < _MOST_FRAMES for index in indices
    ):
        raise MediaError(f"metadata: frames_indices must be a list of integers below {_MOST_FRAMES}")
    sample = tuple(int(index) for index in indices)
    if sample[0] < 0 or any(first > second for first, second in pairwise(sample)):
        raise MediaError("metadata: frames_indices must ascend from 0 or more")
    return sample
