"""Reads a form (`multipart/form-data`), as clients upload files: in memory, with bounds on parts, headers and fields.

What a client says of a file, its name and its type, is dropped: only its bytes count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from corellm_server.errors import ApiError

_MAX_PARTS = 128
_MAX_FIELD = 256 << 10
"""Bytes of a part that is text. Headers are bounded by the parser: 8 per part, of at most 4 KiB."""


@dataclass(frozen=True)
class UploadedFile:
    """A file of a form."""

    content: bytes


def read_form(body: bytes, content_type: bytes) -> dict[str, Any]:
    """The fields of a form: strings, files, and lists of strings for fields named like `include[]`.

    Args:
        body: of the request.
        content_type: its header, with the boundary.

    Raises:
        ApiError: it is no such form, or a part is too large.
    """
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise _invalid("its Content-Type has no boundary")
    form = _Form()
    try:
        parser = MultipartParser(boundary, form.callbacks())
        parser.write(body)
        parser.finalize()
    except FormParserError:
        raise _invalid("it is not multipart/form-data") from None
    if not form.is_complete:
        raise _invalid("its end is missing")
    return form.fields


@dataclass
class _Form:
    """What was read so far."""

    fields: dict[str, Any] = field(default_factory=dict)
    is_complete: bool = False
    _num_parts: int = 0
    _header: list[bytes] = field(default_factory=lambda: [b"", b""])
    _disposition: bytes = b""
    _chunks: list[bytes] = field(default_factory=list)

    def callbacks(self) -> Any:
        """The parser's, by name."""
        return {
            "on_part_begin": self._begin,
            "on_header_begin": lambda: self._header.__setitem__(slice(None), [b"", b""]),
            "on_header_field": lambda data, start, end: self._extend(0, data[start:end]),
            "on_header_value": lambda data, start, end: self._extend(1, data[start:end]),
            "on_header_end": self._end_header,
            "on_part_data": lambda data, start, end: self._chunks.append(data[start:end]),
            "on_part_end": self._end,
            "on_end": self._complete,
        }

    def _begin(self) -> None:
        self._num_parts += 1
        if self._num_parts > _MAX_PARTS:
            raise _invalid(f"it has more than the {_MAX_PARTS} parts allowed")
        self._disposition, self._chunks = b"", []

    def _extend(self, place: int, data: bytes) -> None:
        self._header[place] += data

    def _end_header(self) -> None:
        name, value = self._header
        if name.lower() == b"content-disposition":
            self._disposition = value

    def _end(self) -> None:
        kind, options = parse_options_header(self._disposition)
        if kind != b"form-data" or not options.get(b"name"):
            raise _invalid("a part has no Content-Disposition: form-data with a name")
        name, bracket, _ = _text(options[b"name"]).partition("[")
        content = b"".join(self._chunks)
        if b"filename" not in options and len(content) > _MAX_FIELD:
            raise _invalid(f"field {name!r:.100} is larger than {_MAX_FIELD} bytes; files need a filename")
        value = UploadedFile(content) if b"filename" in options else _text(content)
        if bracket and isinstance(self.fields.setdefault(name, []), list):
            self.fields[name].append(value)
        elif name in self.fields:
            raise _invalid(f"field {name!r:.100} is there twice")
        else:
            self.fields[name] = value

    def _complete(self) -> None:
        self.is_complete = True


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _invalid("a name or a field is not UTF-8") from None


def _invalid(message: str) -> ApiError:
    return ApiError(400, f"invalid form: {message}", code="invalid_form")
