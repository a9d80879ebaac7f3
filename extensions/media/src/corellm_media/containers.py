"""Opening a container with FFmpeg (PyAV): as one format, from memory alone.

No protocol is allowed and no other file is opened: a playlist or session description reaches neither files nor sockets.
No codec is either: FFmpeg would decode packets to guess what headers do not say. Callers allow their streams' own.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any, NoReturn

import av

from corellm.errors import MediaError

if TYPE_CHECKING:
    from av.container import InputContainer

# titles and the like need not be UTF-8; PyAV 19 takes them as they are and has no such argument
_TEXTS: dict[str, Any] = {} if int(av.__version__.partition(".")[0]) >= 19 else {"metadata_errors": "replace"}


def open_container(data: bytes, container: str, options: Mapping[str, str] | None = None) -> InputContainer:
    """Open a file; the caller closes it.

    Args:
        data: the whole file.
        container: FFmpeg's name of its format.
        options: further ones of that format.

    Raises:
        MediaError: it refers to another file.
        av.FFmpegError: it is broken.
    """
    safe = {"format_whitelist": container, "protocol_whitelist": "", "codec_whitelist": "none", **(options or {})}
    opened: InputContainer = av.open(BytesIO(data), "r", container, options=safe, io_open=_refuse, **_TEXTS)
    return opened


def _refuse(url: str, flags: int, options: dict[str, str]) -> NoReturn:
    raise MediaError("refers to another file")
