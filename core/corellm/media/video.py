"""A video as a processor gets it: its metadata, and its frames on demand.

Knows no files, no forms that users give (`frames`), and no model: a family's processor chooses the frames.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from corellm.errors import MediaError, MediaTooLargeError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class VideoMetadata:
    """What is known of a video before any frame is decoded. Fields are named as in transformers' class."""

    total_num_frames: int
    """Frames of the whole video."""
    fps: float | None
    """Frames per second, on average; None if not known."""
    width: int
    """Pixels of every frame, upright."""
    height: int
    """Pixels of every frame, upright."""
    duration: float | None
    """Seconds; None if not known."""
    frames_indices: tuple[int, ...] | None = None
    """If the caller gave a sample: which of the `total_num_frames` it has."""
    do_sample_frames: bool | None = None
    """Whether the caller wants a sample to be taken; None for what the processor does by default."""


class FrameSource(Protocol):
    """Source of frames. Immutable; any thread may read it."""

    @property
    def times(self) -> Sequence[float] | None:
        """When each frame is shown, seconds from the first; None where only a rate is known."""

    def read(self, numbers: Sequence[int]) -> Iterator[np.ndarray[Any, Any]]:
        """The frames `numbers` (ascending, each once), `[height, width, 3]` uint8 RGB, made on demand."""


class Video:
    """One video, whose frames are decoded on demand. Any thread may read it.

    Attributes:
        metadata: what is known of it.
        num_frames: how many frames `read` can give: `metadata.total_num_frames`, or those of a sample.
        max_frames: how many one `read` can give.
        content: what its hash covers: plain values and arrays, all that `read` and `metadata` depend on.
    """

    def __init__(
        self, source: FrameSource, metadata: VideoMetadata, *, max_frames: int, content: tuple[Any, ...]
    ) -> None:
        sample = metadata.frames_indices
        self.metadata = metadata
        self.num_frames = metadata.total_num_frames if sample is None else len(sample)
        self.max_frames = max_frames
        self.content = content
        self._source = source

    def __repr__(self) -> str:
        known = self.metadata
        return f"Video({self.num_frames} frames of {known.width} x {known.height}, fps={known.fps})"

    def read(self, indices: Sequence[int] | None = None) -> Iterator[np.ndarray[Any, Any]]:
        """Iterate over frames; each is decoded when the iterator reaches it.

        Args:
            indices: of the frames, ascending; the same one may come several times. None for all.

        Returns:
            An iterator over arrays `[height, width, 3]` uint8 RGB, upright. The caller may keep
            and change them.

        Raises:
            MediaTooLargeError: more than `max_frames`; or too much to decode for them, raised by the iterator.
            MediaError: a frame cannot be decoded; raised by the iterator when it comes to it.
            ValueError: indices that descend or are out of range.
        """
        wanted = range(self.num_frames) if indices is None else self._checked(indices)
        if len(wanted) > self.max_frames:
            raise MediaTooLargeError(
                f"{len(wanted)} frames to read at once, more than the {self.max_frames} allowed; sample fewer (fewer "
                "fps or a smaller num_frames), or raise max_video_frames",
                expected=self.max_frames,
                got=len(wanted),
            )
        return self._repeated(wanted)

    def timestamps(self, indices: Sequence[int]) -> list[float]:
        """Times of frames in seconds: by the container, else by the rate, from 0.

        Args:
            indices: as for `read`.

        Raises:
            MediaError: frames were given without their rate.
            ValueError: indices that descend or are out of range.
        """
        wanted = self._checked(indices)
        times, fps, sample = self._source.times, self.metadata.fps, self.metadata.frames_indices
        if times is not None:
            return [times[index] for index in wanted]
        if fps is None:
            raise MediaError("frames without times: give them as (frames, {'fps': ...})")
        return [(index if sample is None else sample[index]) / fps for index in wanted]

    def _checked(self, indices: Sequence[int]) -> Sequence[int]:
        wanted = [int(index) for index in indices]
        if any(first > second for first, second in pairwise(wanted)):
            raise ValueError("indices of frames must not descend")
        if wanted and not 0 <= wanted[0] <= wanted[-1] < self.num_frames:
            raise ValueError(f"frames {wanted[0]} to {wanted[-1]} of a video of {self.num_frames}")
        return wanted

    def _repeated(self, wanted: Sequence[int]) -> Iterator[np.ndarray[Any, Any]]:
        counts = Counter(wanted)
        for count, frame in zip(counts.values(), self._source.read(list(counts)), strict=True):
            for _ in range(count - 1):
                yield frame.copy()
            yield frame
