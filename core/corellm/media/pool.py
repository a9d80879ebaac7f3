"""Decodes files in child processes, with limits on time and memory: a file that makes a decoder hang, crash or eat all
memory costs its own request alone.

`worker` is the child's side. Encoded bytes and what is decoded of them cross in shared memory. What a child returns
may come from a decoder that a hostile file has taken over: sizes are checked against the limits and the file's real
size, and values are copied.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from corellm.children import memory
from corellm.children.child import Child, ChildError, ChildTimeoutError, RefusedError
from corellm.children.pool import BusyError, ChildPool
from corellm.config import MultiModalConfig
from corellm.errors import (
    CorellmError,
    MediaError,
    MediaTimeoutError,
    MediaTooLargeError,
    MissingExtraError,
    ProcessingError,
)
from corellm.media.video.bounds import MAX_PACKETS

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

MAX_WORKERS = 4
"""Most children by default."""

_BASE_MEMORY = 1 << 28
"""Bytes for Python and libraries; what is allowed beyond that depends on what is decoded."""
_BYTES_PER_PIXEL, _BYTES_PER_FRAME_PIXEL, _BYTES_PER_SAMPLE = 12, 16, 16

Encoded = bytes | bytearray | memoryview

_RAISED: dict[str, type[CorellmError]] = {
    kind.__name__: kind for kind in (MediaError, MediaTooLargeError, MissingExtraError, ProcessingError)
}
_MAX_MESSAGE = 1000


class MediaPool:
    """Decodes files for any number of threads; children start when first needed.

    Args:
        workers: how many files are decoded at once.
        seconds: how long one call may take, and how long to wait for a free child.
        module: what children run, `worker` or something that is used in its place.
    """

    def __init__(self, workers: int, seconds: float, module: str = "corellm.media.worker") -> None:
        self._children = ChildPool(workers, module)
        self._workers, self._seconds = workers, seconds

    @classmethod
    def of(cls, config: MultiModalConfig) -> MediaPool | None:
        """The pool that a configuration asks for; None if files are decoded in this process."""
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else MAX_WORKERS
        workers = min(MAX_WORKERS, processors) if config.media_workers is None else config.media_workers
        return cls(workers, config.media_timeout) if workers else None

    def close(self) -> None:
        """End the children; decoding again would start new ones."""
        self._children.close()

    def image(self, data: Encoded, name: str, max_pixels: int, formats: Collection[str]) -> Image.Image:
        """Do as `image.decode_image`.

        Raises:
            MediaError, MediaTimeoutError: see `MediaPool`.
        """
        from PIL import Image

        request = {"do": "image", "name": name, "max_pixels": max_pixels, "formats": list(formats)}
        with self._reply(name, request, _BYTES_PER_PIXEL * max_pixels, data) as reply:
            width, height = reply.count("width", max_pixels), reply.count("height", max_pixels)
            reply.require(width * height <= max_pixels)
            with reply.view(width * height * 3, reply.count("at", _MAX_MESSAGE)) as pixels:
                return Image.frombytes("RGB", (width, height), pixels)

    def audio(
        self, data: Encoded, name: str, sampling_rate: int, max_seconds: float, formats: Collection[str]
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Do as `audio.decode_audio`."""
        import numpy as np

        request = {
            "do": "audio", "name": name, "sampling_rate": sampling_rate, "max_seconds": max_seconds,
            "formats": list(formats),
        }  # fmt: skip
        most = math.ceil(max_seconds * sampling_rate) + 1
        with self._reply(name, request, _BYTES_PER_SAMPLE * most, data) as reply:
            samples = np.empty(reply.count("samples", most), np.float32)
            reply.read_into(samples)
            reply.require(bool(np.isfinite(samples).all()))
        return samples

    def video(self, data: bytes, container: str, limits: MultiModalConfig) -> PooledVideo:
        """Open a video, as `video.loading` does in this process."""
        return PooledVideo(self, data, container, limits)

    @contextmanager
    def _reply(
        self,
        name: str,
        request: Mapping[str, Any],
        max_memory: int,
        data: Encoded | None,
        preferred: Sequence[Child] = (),
    ) -> Iterator[Reply]:
        """Send a request; the reply's memory may be read inside of the context only.

        Args:
            name: of the file, for messages, which begin with a verb without one.
            request: as `worker` takes it.
            max_memory: bytes that decoding may take, beside what the child needs anyway and the file.
            data: the file, if it is sent along.
            preferred: children to take if they are free.

        Raises:
            MediaError: whatever the decoder raised, or it crashed.
            MediaTooLargeError: it takes too much memory.
            MediaTimeoutError: it takes too long, or no child is free in time.
            ProcessingError: no child can be started, or the decoder has a fault.
        """
        name, seconds = f"{name} " if name else "", self._seconds
        try:
            with self._children.lend(seconds, preferred) as child, _shared(data) as file:
                try:
                    child.start()
                except (ChildError, OSError) as error:
                    raise ProcessingError(f"the process that decodes media cannot be started: {error}") from error
                limited = {"memory": _BASE_MEMORY + max_memory, **request}
                value, received = child.call_with_file(limited, seconds, file)
                with Reply(value, received, child) as reply:
                    yield reply
        except BusyError:
            raise MediaTimeoutError(
                f"{name}was not decoded: all {self._workers} processes were busy for {seconds:g} s; try again, "
                "or raise media_workers or media_timeout",
                expected=seconds,
            ) from None
        except ChildTimeoutError as error:
            raise MediaTimeoutError(
                f"{name}takes longer than {seconds:g} s to decode; save it again in a plainer form, or raise "
                "media_timeout",
                expected=seconds,
            ) from error
        except RefusedError as error:
            raise MediaTooLargeError(
                f"{name}takes more than {max_memory >> 20} MiB of memory to decode; make it smaller",
                expected=max_memory,
            ) from error
        except ChildError as error:
            raise MediaError(f"{name}is broken: its decoder crashed") from error


@contextmanager
def _shared(data: Encoded | None) -> Iterator[int | None]:
    """A file of shared memory that holds `data`."""
    if data is None:
        yield None
        return
    file = memory.create()
    try:
        memory.write(file, data)
        yield file
    finally:
        os.close(file)


class Reply:
    """What a child returned, not trusted: whatever does not check ends the child and is a `ChildError`."""

    def __init__(self, value: Any, file: int | None, child: Child) -> None:
        self._value, self._file, self.child = value, file, child

    def __enter__(self) -> Reply:
        try:
            self.require(isinstance(self._value, dict))
            if "raised" in self._value:
                self._raise(self._value["raised"])
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)

    def require(self, condition: bool) -> None:
        """Raise `ChildError` unless a check holds, and end the child: it is not what it was."""
        if not condition:
            self.child.kill()
            raise ChildError("a reply that cannot be")

    def get(self, key: str) -> Any:
        """An entry, of any type; None if there is none."""
        return self._value.get(key)

    def count(self, key: str, most: int) -> int:
        """An entry that must be an integer from 1 to `most`."""
        value = self._value.get(key)
        self.require(isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most)
        return int(value)

    def number(self, key: str) -> float | None:
        """An entry that must be a finite number or None."""
        value = self._value.get(key)
        self.require(value is None or (isinstance(value, (int, float)) and math.isfinite(value)))
        return None if value is None else float(value)

    @contextmanager
    def view(self, count: int, at: int = 0) -> Iterator[Any]:
        """The shared memory from a position on, which may still change: to be copied, then checked."""
        self.require(self._file is not None)
        assert self._file is not None
        try:
            with memory.view(self._file, count, at) as view:
                yield view
        except memory.NotThereError:
            self.require(False)

    def read_into(self, target: np.ndarray[Any, Any], at: int = 0) -> None:
        """Fill an array from the shared memory."""
        import numpy as np

        with self.view(target.nbytes, at) as view:
            target.reshape(-1).view(np.uint8)[:] = np.frombuffer(view, np.uint8)

    def _raise(self, raised: Any) -> None:
        self.require(isinstance(raised, list) and len(raised) == 4 and raised[0] in _RAISED)
        kind, message = _RAISED[raised[0]], str(raised[1])[:_MAX_MESSAGE]
        if issubclass(kind, MediaError):
            raise kind(message, expected=_untupled(raised[2]), got=_untupled(raised[3]))
        raise kind(message)


def _untupled(value: Any) -> Any:
    """A value from JSON, where tuples became lists."""
    return tuple(map(_untupled, value)) if isinstance(value, list) else value


# --- videos -----------------------------------------------------------------------------------------------------------

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
        self._max_pixels, self._memory = limits.max_video_pixels, _BYTES_PER_FRAME_PIXEL * limits.max_video_pixels
        self._opening = {
            "do": "open", "video": self._id, "container": container,
            "limits": {name: getattr(limits, name) for name in ("max_video_pixels", "max_video_decoded_pixels")},
        }  # fmt: skip
        self._child: Child | None = None
        with pool._reply("", self._opening, self._memory, data) as reply:
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
            data = None if opening is None else self._data
            preferred = () if self._child is None else (self._child,)
            with self._pool._reply("the video", request | {"opening": opening}, self._memory, data, preferred) as reply:
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
