"""A video whose frames child processes decode on demand. Knows neither containers nor codecs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from corellm.children.child import Child
from corellm.config import MultiModalConfig
from corellm_media.video.bounds import MAX_PACKETS

if TYPE_CHECKING:
    import numpy as np

    from corellm.media.pool import MediaPool

_BYTES_PER_PIXEL = 16
"""Memory that decoding may take for each pixel of the largest frame."""

_ids = itertools.count()


class PooledVideo:
    """The frames of one file, decoded by children on demand. Any thread may read it.

    A child remembers the video it opened last and goes on where it stopped; another one, or one that was busy with
    other videos meanwhile, opens it again.

    Attributes:
        width, height: of every frame, upright.
        times: when each frame is shown, seconds from the first.
        duration, fps: as of `video.container.EncodedVideo`.
    """

    def __init__(self, pool: MediaPool, data: bytes, container: str, limits: MultiModalConfig) -> None:
        import numpy as np

        self._pool, self._data, self._id = pool, data, next(_ids)
        self._max_pixels, self._memory = limits.max_video_pixels, _BYTES_PER_PIXEL * limits.max_video_pixels
        self._opening = {
            "do": "open", "video": self._id, "container": container,
            "limits": {name: getattr(limits, name) for name in ("max_video_pixels", "max_video_decoded_pixels")},
        }  # fmt: skip
        self._child: Child | None = None
        with pool.reply("", self._opening, self._memory, data) as reply:
            self._child = reply.child
            self.width, self.height = reply.count("width", self._max_pixels), reply.count("height", self._max_pixels)
            reply.require(self.width * self.height <= self._max_pixels)
            self.duration, self.fps = reply.number("duration"), reply.number("fps")
            times = np.empty(reply.count("frames", MAX_PACKETS))
            reply.read_into(times)
            reply.require(bool(np.isfinite(times).all() and times[0] == 0 and (np.diff(times) >= 0).all()))
        self.times = times.tolist()

    def read(self, numbers: Sequence[int]) -> Iterator[np.ndarray[Any, Any]]:
        """The frames `numbers` (ascending, each once), `[height, width, 3]` uint8 RGB, some ahead of their use."""
        reader, left = next(_ids), list(numbers)
        while left:
            for frame in self._next(reader, left):
                left.pop(0)
                yield frame

    def _next(self, reader: int, left: Sequence[int]) -> list[np.ndarray[Any, Any]]:
        """The first of the frames that are left, at least one."""
        import numpy as np

        request = {"do": "read", "video": self._id, "reader": reader, "frames": left}
        for opening in (None, self._opening):
            data = b"" if opening is None else self._data
            preferred = () if self._child is None else (self._child,)
            with self._pool.reply("the video", request | {"opening": opening}, self._memory, data, preferred) as reply:
                self._child = reply.child
                if reply.get("forgotten"):
                    reply.require(opening is None)
                    continue
                frames = [
                    np.empty((self.height, self.width, 3), np.uint8) for _ in range(reply.count("frames", len(left)))
                ]
                for number, frame in enumerate(frames):
                    reply.read_into(frame, number * frame.nbytes)
                return frames
        raise AssertionError("a child that was sent the file has it")
