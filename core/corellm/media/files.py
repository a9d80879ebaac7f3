"""Media as files: the bytes of paths and `data:` URLs, and which formats are accepted. Decodes nothing.

Strings are paths or `data:` URLs; nothing is fetched. Only regular files are opened, so that opening never blocks.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
from collections.abc import Collection
from typing import Any, BinaryIO
from urllib.parse import unquote_to_bytes

from corellm.errors import MediaError, MediaTooLargeError

MAX_FILE_BYTES = 1 << 30
"""Largest file of an image or audio: it is read whole before it is decoded."""


class FileContent(bytes):
    """The bytes of a file, with its path for messages."""

    path: str


def name_of(content: object) -> str:
    """Name of encoded bytes in messages: their path if they have one."""
    return content.path if isinstance(content, FileContent) else "the data"


def check_format(name: str, shown: str, formats: Collection[str]) -> None:
    """Refuse a file of a format that is not accepted.

    Args:
        name: name of the format in `config.MEDIA_FORMATS`.
        shown: name of the file in messages.
        formats: those accepted.

    Raises:
        MediaError: the format is none of them.
    """
    if name not in formats:
        raise MediaError(
            f"{shown} is of the format {name}, which is not accepted here; accepted: {', '.join(formats) or 'none'} "
            "(media_formats)",
            expected=tuple(formats), got=name,
        )  # fmt: skip


def encoded_bytes(value: Any) -> bytes | None:
    """Bytes of encoded media, given as bytes, path or `data:` URL; None for any other form.

    Raises:
        MediaError: no such file, not a regular one, a malformed `data:` URL, or one that would have to be fetched.
        MediaTooLargeError: more than `MAX_FILE_BYTES`; nothing is read.
    """
    source = read_url(value) if isinstance(value, str) else value
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source)
    return read_file(source) if isinstance(source, (str, os.PathLike)) else None


def read_file(path: str | os.PathLike[Any]) -> FileContent:
    """Content of a regular file.

    Raises:
        MediaError: no such file, or not a regular one.
        MediaTooLargeError: more than `MAX_FILE_BYTES`; nothing is read.
    """
    name = shown_path(path)
    with open_regular_file(path) as stream:
        try:
            size = os.fstat(stream.fileno()).st_size
            content = b"" if size > MAX_FILE_BYTES else stream.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise MediaError(f"cannot read {name}: {error.strerror}") from error
    size = max(size, len(content))  # it may have grown
    if size > MAX_FILE_BYTES:
        raise MediaTooLargeError(
            f"{name} has {size} bytes, more than the {MAX_FILE_BYTES} allowed", expected=MAX_FILE_BYTES, got=size
        )
    named = FileContent(content)
    named.path = name
    return named


def is_remote(name: str) -> bool:
    """Whether media that are named so would have to be fetched."""
    return name[:8].lower().startswith(("http://", "https://"))


def read_url(value: str) -> str | bytes:
    """The bytes of a `data:` URL (base64 or percent-encoded); any other string as it is: a path.

    Raises:
        MediaError: a malformed `data:` URL, or one that would have to be fetched.
    """
    if is_remote(value):
        raise MediaError(
            "this URL is not fetched: for conversations, name its host in LLM(..., allowed_media_domains=[...]); "
            "otherwise download the file and give its path or its bytes"
        )
    if value[:5].lower() != "data:":
        return value
    header, comma, payload = value.partition(",")
    if not comma:
        raise MediaError("malformed data: URL: no comma before the data")
    if not header.lower().endswith(";base64"):
        return unquote_to_bytes(payload)
    try:
        return base64.b64decode(b"".join(unquote_to_bytes(payload).split()), validate=True)
    except binascii.Error as error:
        raise MediaError("malformed data: URL: the data are not base64") from error


def open_regular_file(path: str | os.PathLike[Any]) -> BinaryIO:
    """Open a file to read bytes from; the caller closes it.

    Directories, pipes, sockets and devices are refused without blocking.

    Raises:
        MediaError: there is no such file, it is not a regular one, or it cannot be opened.
    """
    name = shown_path(path)
    try:
        _require_regular(os.stat(path).st_mode, name)  # opening a device may have effects of its own
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except MediaError:
        raise
    except FileNotFoundError:
        raise MediaError(f"no such file: {name}") from None
    except OSError as error:
        raise MediaError(f"cannot open {name}: {error.strerror}") from error
    except ValueError as error:  # a NUL character
        raise MediaError(f"not a path: {name}") from error
    stream = os.fdopen(descriptor, "rb")
    try:
        _require_regular(os.fstat(descriptor).st_mode, name)  # again: it may have been replaced meanwhile
    except MediaError:
        stream.close()
        raise
    return stream


def _require_regular(mode: int, name: str) -> None:
    if not stat.S_ISREG(mode):
        raise MediaError(f"{name} is {'a directory' if stat.S_ISDIR(mode) else 'not a regular file'}")


def shown_path(path: str | os.PathLike[Any]) -> str:
    """A path for messages: quoted and shortened."""
    name = os.fspath(path)
    return repr(name if len(name) <= 200 else name[:200] + type(name)(b"..." if isinstance(name, bytes) else "..."))
