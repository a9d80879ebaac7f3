"""The child process that decodes files: `python -m corellm.media.worker`.

A request names what to do, how much memory it may take, and the size of the encoded file in shared memory. The result
has sizes; pixels, samples or times take the file's place; or it is the error that decoding raised. Imports no torch,
and decoders only when they are needed. `pool` is the parent's side.
"""

from __future__ import annotations

import os
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import TYPE_CHECKING, Any

from corellm.children.memory import KEPT_BYTES, SharedMemory
from corellm.children.serving import limit_memory, serve_with_memory
from corellm.config import MultiModalConfig
from corellm.errors import CorellmError, MediaError, MissingExtraError

if TYPE_CHECKING:
    import numpy as np

    from corellm.media.video.video import FrameSource

_CHUNK_SECONDS, _CHUNK_BYTES = 0.5, KEPT_BYTES // 2
"""Frames are returned together until so much time or memory is used."""
PIXELS_AT = 64
"""Where an image begins in shared memory: copying it is four times slower between equal offsets in pages."""
_MAX_VIDEOS = 2
_BASE_MEMORY = 1 << 28
"""Bytes for Python and libraries; what is allowed beyond that depends on what is decoded."""

Result = dict[str, Any]


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


class Worker:
    """Decodes one request at a time; remembers the last videos."""

    def __init__(self) -> None:
        self._videos: OrderedDict[int, _Video] = OrderedDict()

    def handle(self, request: dict[str, Any], shared: SharedMemory) -> Result:
        """The result of a request, or what was raised. Running out of memory is left to `serving`."""
        actions: dict[str, Callable[[dict[str, Any], SharedMemory], Result]] = {
            "image": self._image, "audio": self._audio, "open": self._open, "read": self._read,
        }  # fmt: skip
        self._limit_memory(request)
        try:
            return actions[request["do"]](request, shared)
        except MemoryError:
            self._videos.clear()
            raise
        except (MediaError, MissingExtraError) as error:
            if isinstance(error.__cause__, MemoryError):  # FFmpeg's, which is one of its errors, too
                self._videos.clear()
                raise error.__cause__ from None
            limits = (getattr(error, "expected", None), getattr(error, "got", None))
            return {"raised": [type(error).__name__, str(error), *map(_plain, limits)]}
        except Exception as error:
            message = str(error) if isinstance(error, CorellmError) else f"{type(error).__name__} while decoding"
            return {"raised": ["ProcessingError", message, None, None]}

    def _limit_memory(self, request: dict[str, Any]) -> None:
        """Allow what a request takes, beside what the videos hold that are remembered: one of them may be its own."""
        held = sum(video.memory for video in self._videos.values())
        own = 0 if request.get("video") in self._videos else _memory_for(request)
        limit_memory(_BASE_MEMORY + held + own)

    def _image(self, request: dict[str, Any], shared: SharedMemory) -> Result:
        from PIL import ImageFile, features
        from PIL.Image import DecompressionBombWarning

        from corellm.media.image import decode_image

        warnings.simplefilter("error", DecompressionBombWarning)
        if "avif" in request["formats"] and features.check("avif"):
            from PIL import AvifImagePlugin

            AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # each has memory of its own
        names = ("name", "max_pixels", "formats")
        image = decode_image(BytesIO(shared.read(request["bytes"])), *(request[name] for name in names))
        os.lseek(shared.descriptor, PIXELS_AT, os.SEEK_SET)
        with open(shared.descriptor, "wb", buffering=0, closefd=False) as pixels:
            # as Pillow keeps them, four bytes each: `tobytes` would pack and copy them
            ImageFile._save(image, pixels, [ImageFile._Tile("raw", (0, 0, *image.size), 0, ("RGBX", 0, 1))])
        return {"width": image.width, "height": image.height}

    def _audio(self, request: dict[str, Any], shared: SharedMemory) -> Result:
        from corellm.media.audio import decode_audio

        names = ("name", "sampling_rate", "max_seconds", "formats")
        samples = decode_audio(shared.read(request["bytes"]), *(request[name] for name in names))
        shared.write(samples.data)
        return {"samples": len(samples)}

    def _open(self, request: dict[str, Any], shared: SharedMemory) -> Result:
        import numpy as np

        from corellm.media.video.loading import open_frames

        while len(self._videos) >= _MAX_VIDEOS:
            self._videos.popitem(last=False)
        source = open_frames(shared.read(request["bytes"]), request["container"], MultiModalConfig(**request["limits"]))
        self._videos[request["video"]] = _Video(source, _memory_for(request))
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


def _memory_for(request: dict[str, Any]) -> int:
    """Bytes that a request takes: as it says, and the encoded file."""
    return int(request["memory"]) + int(request["bytes"])


def _plain(value: Any) -> Any:
    """A number or tuple as JSON has them, without numpy's types."""
    if isinstance(value, tuple):
        return [_plain(element) for element in value]
    return value.item() if hasattr(value, "item") else value


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # users who sent a file do not see this output
    serve_with_memory(Worker().handle)
