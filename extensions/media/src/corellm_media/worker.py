"""The child process that decodes audio and videos, and images as the core's does: `python -m corellm_media.worker`.

Requests are those of `corellm.media.worker`, with more of what to do. Decoders are imported when they are needed.
"""

from __future__ import annotations

import time
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from corellm.children.memory import KEPT_BYTES, SharedMemory
from corellm.children.serving import serve_with_memory
from corellm.config import MultiModalConfig
from corellm.errors import MediaError
from corellm.media.worker import Action, Result, Worker, memory_for

if TYPE_CHECKING:
    import numpy as np

    from corellm.media.video import FrameSource

_CHUNK_SECONDS, _CHUNK_BYTES = 0.5, KEPT_BYTES // 2
"""Frames are returned together until so much time or memory is used."""
_MAX_VIDEOS = 2


class _Video:
    """A video that is open, and where its last reader is; `memory` is what it may hold, its file included."""

    def __init__(self, source: FrameSource, memory: int) -> None:
        self.source, self.memory = source, memory
        self.reader: int | None = None
        self.left: list[int] = []
        self.frames: Iterator[np.ndarray[Any, Any]] = iter(())
        self.error: MediaError | None = None

    def go_to(self, reader: int, left: list[int]) -> None:
        """Begin at the first of the frames that are left, unless the reader is there."""
        if self.reader != reader or self.left != left:
            self.reader, self.left, self.error = reader, left, None
            self.frames = self.source.read(left)


class MediaWorker(Worker):
    """Decodes images, audio and videos; remembers the last videos."""

    def __init__(self) -> None:
        self._videos: OrderedDict[int, _Video] = OrderedDict()

    def actions(self) -> dict[str, Action]:
        """Return the functions, by what a request says is to be done."""
        return super().actions() | {"audio": self._audio, "open": self._open, "read": self._read}

    def most_memory(self, request: dict[str, Any]) -> int:
        """Return what a request takes, beside what the videos hold that are remembered: one of them may be its own."""
        held = sum(video.memory for video in self._videos.values())
        return held + (0 if request.get("video") in self._videos else super().most_memory(request))

    def forget(self) -> None:
        """Forget the videos."""
        self._videos.clear()

    def _audio(self, request: dict[str, Any], shared: SharedMemory) -> Result:
        from corellm_media.audio import decode_audio

        names = ("name", "sampling_rate", "max_seconds", "formats")
        samples = decode_audio(shared.read(request["bytes"]), *(request[name] for name in names))
        shared.write(samples.data)
        return {"samples": len(samples)}

    def _open(self, request: dict[str, Any], shared: SharedMemory) -> Result:
        import numpy as np

        from corellm_media.video.files import open_frames

        while len(self._videos) >= _MAX_VIDEOS:
            self._videos.popitem(last=False)
        source = open_frames(shared.read(request["bytes"]), request["container"], MultiModalConfig(**request["limits"]))
        self._videos[request["video"]] = _Video(source, memory_for(request))
        about = {"width": source.width, "height": source.height, "duration": source.duration, "fps": source.fps}
        shared.write(np.asarray(source.times, np.float64).data)
        return about | {"frames": len(source.times)}

    def _read(self, request: dict[str, Any], shared: SharedMemory) -> Result:
        if request["opening"] is not None:
            self._open(request | request["opening"], shared)
        video = self._videos.get(request["video"])
        if video is None:
            return {"forgotten": True}
        self._videos.move_to_end(request["video"])
        video.go_to(request["reader"], request["frames"])
        if video.error is not None:
            raise video.error
        end, at, count = time.monotonic() + _CHUNK_SECONDS, 0, 0
        try:
            for frame in video.frames:
                at = shared.write(frame.data, at)
                count += 1
                if at >= _CHUNK_BYTES or time.monotonic() > end:
                    break
        except MediaError as error:
            if not count:
                raise
            video.error = error  # after the frames before it
        video.left = video.left[count:]
        if not video.left:
            del self._videos[request["video"]]  # few are read twice
        return {"frames": count}


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # users who sent a file do not see this output
    serve_with_memory(MediaWorker().handle)
