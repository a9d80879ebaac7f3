"""Videos as transformers' processors take them: frames are decoded where a processor takes its sample of them.

Knows how processors sample; knows no model family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from corellm.errors import MediaTooLargeError
from corellm.multimodal import FramesInMemory, Video, VideoMetadata

_MAX_BYTES = 1 << 30
"""Most bytes of all frames of a video, for a processor that takes no sample of them."""


def video_of(pixels: np.ndarray[Any, Any], fps: float) -> Video:
    """Return a video of frames in memory."""
    count, height, width, _ = pixels.shape
    metadata = VideoMetadata(count, fps, width, height, count / fps)
    return Video(FramesInMemory(pixels), metadata, max_frames=count, content=())


class _Sampled(np.ndarray[Any, Any]):
    """An array of a video's shape without its frames: those that are asked for by their indices are decoded then.

    It holds no numbers, so that whatever takes its values raises a `TypeError`.
    """

    video: Video

    @classmethod
    def of(cls, video: Video) -> _Sampled:
        """Return the array of a video."""
        shape = (video.num_frames, video.metadata.height, video.metadata.width, 3)
        array = np.lib.stride_tricks.as_strided(np.full(1, object()), shape, (0, 0, 0, 0)).view(cls)
        array.video = video
        return array

    def __getitem__(self, indices: Any) -> Any:
        wanted = np.asarray(indices)
        if isinstance(indices, tuple) or wanted.ndim != 1 or wanted.dtype.kind not in "iu":
            raise TypeError("frames are taken by a list of their indices")
        return np.stack(list(self.video.read(wanted.tolist())))


def processed(
    call: Callable[..., Mapping[str, Any]], videos: Sequence[Video], given: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return a processor's output for videos; only the frames that it takes are decoded.

    Args:
        call: the processor, of all its other arguments.
        videos: of one request.
        given: a request's arguments.

    Raises:
        MediaTooLargeError: it takes all frames, and they are too many to be in memory at once.
        MediaError: a frame cannot be decoded.
    """
    arguments: dict[str, Any] = {"video_metadata": [_metadata(video.metadata, video.num_frames) for video in videos]}
    wishes = [_wish(video.metadata) for video in videos]
    if wishes[0] is not None and "do_sample_frames" not in given:
        arguments["do_sample_frames"] = wishes[0]
    if given.get("do_sample_frames", wishes[0]) is not False:
        try:
            return call(videos=[_Sampled.of(video) for video in videos], **given, **arguments)
        except TypeError:
            pass  # it takes all frames; if another argument is wrong, the next call says so
    return call(videos=[_all_frames(video) for video in videos], **given, **arguments)


def _metadata(known: VideoMetadata, num_frames: int) -> dict[str, Any]:
    stated = {name: value for name, value in asdict(known).items() if name != "do_sample_frames"}
    sample = range(num_frames) if known.frames_indices is None else known.frames_indices
    return {**stated, "frames_indices": list(sample)}


def _wish(known: VideoMetadata) -> bool | None:
    """Return whether frames are to be sampled, None for what the processor does: a sample is not sampled again."""
    if known.do_sample_frames is None and known.frames_indices is not None:
        return False
    return known.do_sample_frames


def _all_frames(video: Video) -> np.ndarray[Any, Any]:
    known = video.metadata
    size = video.num_frames * known.height * known.width * 3
    if size > _MAX_BYTES:
        raise MediaTooLargeError(
            f"the model's processor takes all {video.num_frames} frames of {known.width} x {known.height} pixels at "
            f"once, {size} bytes, more than {_MAX_BYTES}; give fewer frames",
            expected=_MAX_BYTES,
            got=size,
        )
    return np.stack(list(video.read()))
