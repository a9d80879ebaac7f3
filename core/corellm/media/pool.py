"""Decodes files in child processes, within limits on time and memory.

A file that makes a decoder hang, crash or use too much memory fails its own request alone. `worker` is the child's
side, `reply` checks what it returns. Files and what is decoded of them are passed in shared memory.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from corellm.children.child import Child, ChildError, ChildTimeoutError, RefusedError
from corellm.children.pool import BusyError, ChildPool, ClosedError
from corellm.config import MultiModalConfig
from corellm.errors import (
    CorellmError,
    MediaBusyError,
    MediaError,
    MediaTimeoutError,
    MediaTooLargeError,
    ProcessingError,
)
from corellm.media.reply import Reply
from corellm.media.worker import PIXELS_AT

if TYPE_CHECKING:
    from PIL import Image

MAX_WORKERS = 4
"""Most children by default."""
IMAGE_WORKER = "corellm.media.worker"
"""What children run to decode images alone."""

_BYTES_PER_PIXEL = 12
"""Memory that decoding may take for each pixel of the largest image."""
_MAX_REPLY_BYTES = 1 << 16
"""Sizes or an error, in JSON; what is decoded comes in shared memory."""

Encoded = bytes | bytearray | memoryview


class MediaPool:
    """Decodes files for any number of threads; children start when first needed, or with `start`.

    Args:
        workers: how many files are decoded at once.
        seconds: how long one call may take, and how long to wait for a free child.
        module: what children run: `worker`, or one that decodes more.
    """

    def __init__(self, workers: int, seconds: float, module: str = IMAGE_WORKER) -> None:
        self._children = ChildPool(workers, module, max_reply_bytes=_MAX_REPLY_BYTES)
        self._workers, self._seconds = workers, seconds

    @classmethod
    def of(cls, config: MultiModalConfig, module: str = IMAGE_WORKER) -> MediaPool | None:
        """The pool that a configuration asks for; None if files are decoded in this process."""
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else MAX_WORKERS
        workers = min(MAX_WORKERS, processors) if config.media_workers is None else config.media_workers
        return cls(workers, config.media_timeout, module) if workers else None

    def start(self) -> None:
        """Start a child in the background and decode an image in it, so that the first file need not wait for imports.

        Errors are left to the first file.
        """
        threading.Thread(target=self._start, name="corellm-media-start", daemon=True).start()

    def _start(self) -> None:
        from PIL import Image

        file = BytesIO()
        Image.new("RGB", (1, 1)).save(file, "JPEG")
        with contextlib.suppress(CorellmError):
            self.image(file.getvalue(), "the first image", 1, ["jpeg"])

    def close(self) -> None:
        """End the children; what is being decoded, or asked for later, fails."""
        self._children.close()

    def image(self, data: Encoded, name: str, max_pixels: int, formats: Collection[str]) -> Image.Image:
        """Do as `image.decode_image`.

        Raises:
            MediaError, ProcessingError: see `reply`, which all calls use.
        """
        from PIL import Image

        request = {"do": "image", "name": name, "max_pixels": max_pixels, "formats": list(formats)}
        with self.reply(name, request, _BYTES_PER_PIXEL * max_pixels, data) as reply:
            width, height = reply.count("width", max_pixels), reply.count("height", max_pixels)
            reply.require(width * height <= max_pixels)
            with reply.view(width * height * 4, PIXELS_AT) as pixels:
                return Image.frombytes("RGB", (width, height), pixels, "raw", "RGBX")

    @contextlib.contextmanager
    def reply(
        self,
        name: str,
        request: Mapping[str, Any],
        max_memory: int,
        data: Encoded,
        preferred: Sequence[Child] = (),
    ) -> Iterator[Reply]:
        """Send a request to a child; the reply's memory may be read inside of the context only.

        Args:
            name: of the file, for messages, which begin with a verb without one.
            request: as `worker` takes it.
            max_memory: bytes that decoding may take, beside what the child needs anyway and the file.
            data: the file, empty if the child has it.
            preferred: children to take if they are free.

        Raises:
            MediaError: whatever the decoder raised, or it crashed.
            MediaTooLargeError: it takes too much memory.
            MediaTimeoutError: it takes too long.
            MediaBusyError: no child is free in time.
            ProcessingError: no child can be started, the decoder has a fault, or the pool was closed.
        """
        name, seconds = f"{name} " if name else "", self._seconds
        try:
            with self._children.lend(seconds, preferred) as child:
                try:
                    child.start()
                except (ChildError, OSError) as error:
                    raise ProcessingError(f"the process that decodes media cannot be started: {error}") from error
                child.memory.write(data)
                try:
                    yield Reply(child.call({"memory": max_memory, "bytes": len(data), **request}, seconds), child)
                finally:
                    child.trim_memory()
        except ClosedError:
            raise _closed() from None
        except BusyError:
            raise MediaBusyError(
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
            if self._children.is_closed:
                raise _closed() from error
            raise MediaError(f"{name}is broken: its decoder crashed") from error


def _closed() -> ProcessingError:
    return ProcessingError("media are not decoded any more: the engine was shut down; make a new one")
