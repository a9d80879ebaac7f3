"""The child process that decodes files: `python -m corellm.media.worker`.

A request names what to do, how much memory it may take, and the size of the encoded file in shared memory. The result
has sizes; pixels take the file's place; or it is the error that decoding raised. Imports no torch,
and a decoder only when it is needed. `pool` is the parent's side.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from io import BytesIO
from typing import Any

from corellm.children.memory import SharedMemory
from corellm.children.serving import limit_memory, serve_with_memory
from corellm.errors import CorellmError, MediaError

PIXELS_AT = 64
"""Where an image begins in shared memory: copying it is four times slower between equal offsets in pages."""
_BASE_MEMORY = 1 << 28
"""Bytes for Python and libraries; what is allowed beyond that depends on what is decoded."""

Result = dict[str, Any]
Action = Callable[[dict[str, Any], SharedMemory], Result]


class Worker:
    """Decodes one request at a time. What extensions decode in a subclass comes beside images."""

    def handle(self, request: dict[str, Any], shared: SharedMemory) -> Result:
        """The result of a request, or what was raised. Running out of memory is left to `serving`."""
        limit_memory(_BASE_MEMORY + self.most_memory(request))
        try:
            return self.actions()[request["do"]](request, shared)
        except MemoryError:
            self.forget()
            raise
        except MediaError as error:
            if isinstance(error.__cause__, MemoryError):  # a decoder's, which is one of its errors, too
                self.forget()
                raise error.__cause__ from None
            return {"raised": [type(error).__name__, str(error), _plain(error.expected), _plain(error.got)]}
        except Exception as error:
            message = str(error) if isinstance(error, CorellmError) else f"{type(error).__name__} while decoding"
            return {"raised": ["ProcessingError", message, None, None]}

    def actions(self) -> dict[str, Action]:
        """Return the functions, by what a request says is to be done."""
        return {"image": self._image}

    def most_memory(self, request: dict[str, Any]) -> int:
        """Return the bytes that are allowed, beside those for Python and libraries."""
        return memory_for(request)

    def forget(self) -> None:
        """Give back the memory that is held from one request to the next."""

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


def memory_for(request: dict[str, Any]) -> int:
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
