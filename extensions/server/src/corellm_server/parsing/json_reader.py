"""JSON that comes in pieces: one value, checked as it comes, and mended where models often err.

In strings, line breaks and other control characters become escapes, and a backslash before a character that needs none
becomes two. Knows text only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from corellm_server.parsing.pieces import Piece
from corellm_server.parsing.reader import SPACES, BrokenFormError, Reader, Reading

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")
_BEGINNING = re.compile(
    r"t(?:r(?:ue?)?)?|f(?:a(?:l(?:se?)?)?)?|n(?:u(?:ll?)?)?|"
    r"-?(?:(?:0|[1-9][0-9]*)(?:\.(?:[0-9]+(?:[eE][+-]?[0-9]*)?)?|[eE][+-]?[0-9]*)?)?"
)
"""What may come to be a scalar; it matches any text, as far as that goes."""
_SCALAR_CHARACTERS = re.compile(r"[-+.0-9a-zA-Z]+")
_MOST_OF_SCALAR = 400
_MAX_DEPTH = 48
_ESCAPED = frozenset('"\\/bfnrt')
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")


class JsonScanner:
    """Goes through one JSON value."""

    def __init__(self) -> None:
        self.is_complete = self.is_broken = False
        self._brackets: list[str] = []
        self._next = "value"
        """What must come: a value, a key, a colon, a comma; or the rest of a string, an escape, or a scalar."""
        self._is_key = self._may_close = False
        self._escape = self._scalar = ""
        self._high = ""
        """The escape of a first half of a character, whose second half must come."""

    def scan(self, text: str, start: int) -> tuple[int, str]:
        """Go on to the value's end, or to a character that breaks it: where that is, and what is before as JSON."""
        made: list[str] = []
        position = start
        while position < len(text) and not (self.is_complete or self.is_broken):
            position = self._step(text, position, made)
        return position, "".join(made)

    def _step(self, text: str, position: int, made: list[str]) -> int:
        if self._next == "string":
            return self._in_string(text, position, made)
        if self._next == "escape":
            return self._in_escape(text, position, made)
        if self._next == "value" and _SCALAR_CHARACTERS.match(text, position):
            self._next, self._scalar, self._may_close = "scalar", "", False
        if self._next == "scalar":
            return self._in_scalar(text, position, made)
        self._between(text[position])
        if self.is_broken:
            return position
        made.append(text[position])
        return position + 1

    def _in_scalar(self, text: str, position: int, made: list[str]) -> int:
        left = _MOST_OF_SCALAR - len(self._scalar)
        found = _SCALAR_CHARACTERS.match(text, position, position + left) if left else None
        if found is not None:
            known, whole = len(self._scalar), self._scalar + found.group()
            beginning = _BEGINNING.match(whole)
            assert beginning is not None
            self._scalar = beginning.group()
            self.is_broken = self._scalar != whole
            made.append(self._scalar[known:])
            return position + len(self._scalar) - known
        self.is_broken = not _SCALAR.fullmatch(self._scalar)
        self._end_value()
        return position

    def _between(self, character: str) -> None:
        """Take a character outside of strings and scalars."""
        if character in SPACES:
            return
        closes = character in "]}" and bool(self._brackets) and self._brackets[-1] == character
        if closes and (self._may_close or self._next == "comma"):
            self._brackets.pop()
            self._end_value()
        elif self._next == "value" and character in "[{":
            self._open(character)
        elif character == '"' and self._next in ("value", "key"):
            self._is_key, self._next = self._next == "key", "string"
        elif (character, self._next) == (":", "colon"):
            self._next = "value"
        elif (character, self._next) == (",", "comma"):
            self._next = "key" if self._brackets[-1] == "}" else "value"
        else:
            self.is_broken = True
        self._may_close = character in "[{" and self._next in ("value", "key")

    def _open(self, bracket: str) -> None:
        self._brackets.append("]" if bracket == "[" else "}")
        self.is_broken = len(self._brackets) > _MAX_DEPTH
        self._next = "value" if bracket == "[" else "key"

    def _in_string(self, text: str, position: int, made: list[str]) -> int:
        if self._high and text[position] != "\\":
            self._end_half(made)
        if found := _PLAIN.match(text, position):
            made.append(found.group())
            return found.end()
        character = text[position]
        if character == "\\":
            self._next, self._escape = "escape", ""
        elif character == '"':
            made.append(character)
            if self._is_key:
                self._next = "colon"
            else:
                self._end_value()
        else:
            made.append(json.dumps(character)[1:-1])
        return position + 1

    def _in_escape(self, text: str, position: int, made: list[str]) -> int:
        """Take a character after a backslash: the whole escape, or one of the four digits after u."""
        character = text[position]
        is_digit = self._escape != "" and character in _HEXADECIMAL
        if is_digit or (self._escape == "" and (character == "u" or character in _ESCAPED)):
            self._escape += character
            if self._escape[0] != "u" or len(self._escape) == 5:
                self._end_escape(made)
            return position + 1
        self._end_half(made)
        made.append("\\\\" + self._escape)  # no escape: the backslash means itself
        self._next = "string"
        return position

    def _end_escape(self, made: list[str]) -> None:
        """Take a whole escape; half a character alone, which no text can have, becomes U+FFFD."""
        self._next = "string"
        code = int(self._escape[1:], 16) if self._escape[0] == "u" else 0
        if 0xDC00 <= code < 0xE000 and self._high:
            made.append(f"\\{self._high}\\{self._escape}")
            self._high = ""
            return
        self._end_half(made)
        if 0xD800 <= code < 0xDC00:
            self._high = self._escape
        else:
            made.append("\\ufffd" if 0xDC00 <= code < 0xE000 else f"\\{self._escape}")

    def _end_half(self, made: list[str]) -> None:
        if self._high:
            made.append("\\ufffd")
            self._high = ""

    def _end_value(self) -> None:
        self._next = "comma"
        self.is_complete = not self._brackets


def read_json(reader: Reader, make: Callable[[str, str], Piece] | None = None, opening: str = "") -> Reading[str]:
    """Read a JSON value, and return it as text; with `make`, yield pieces of it instead, of their source and text.

    Args:
        reader: where the value comes next.
        make: a piece.
        opening: the characters that the value may begin with; any if there are none.

    Raises:
        BrokenFormError: it is no JSON, or does not end.
    """
    yield from reader.spaces()
    first = yield from reader.peek()
    if not first or (opening and first not in opening):
        raise BrokenFormError
    scanner = JsonScanner()
    whole: list[str] = []
    while not scanner.is_complete:
        text = yield from reader.scan(scanner)
        if make is None:
            whole.append(text)
        elif reader.pending:
            yield make(reader.take(), text)
        if scanner.is_broken:
            raise BrokenFormError
    return "".join(whole)
