"""The machine that all parsers share: text comes in pieces, and a parser reads on as if the whole were there.

A parser is a generator over a `Reader`. It asks for what comes next (`yield from reader.until(...)`), which waits for
more text where it must, and yields pieces as soon as they are certain. So no parser knows how the output was cut. What
it has read and not yielded is `pending`; where the form turns out broken, that becomes text. Knows no family's form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import ClassVar, Protocol, TypeVar

from corellm_server.parsing.pieces import Piece, Reasoning, Text

_Result = TypeVar("_Result")
Reading = Generator[Piece | None, None, _Result]
"""Yields pieces, and None where it waits for more text."""
SPACES = " \t\r\n"
_MOST_SPACES = 64
"""Spaces before a marker that belong to it; so many are held back."""


class OutputParser(Protocol):
    """Reads one output of a model, in pieces that are cut anywhere.

    The result must not depend on the cut, and the sources of all pieces must be the output. Nothing raises: whatever is
    broken is text.
    """

    def feed(self, text: str) -> list[Piece]:
        """What is certain after more text."""

    def finish(self) -> list[Piece]:
        """What is left when the output ends."""


class Scanner(Protocol):
    """Goes through a text character by character."""

    def scan(self, text: str, start: int) -> tuple[int, str]:
        """Where it stopped, and what it makes of what it went through."""


class BrokenFormError(Exception):
    """What was read is not the form that it began as. Parsers raise it; no caller sees it."""


class Reader:
    """A text that grows, and how far it was read. A character is moved a few times, however long nothing is yielded."""

    def __init__(self) -> None:
        self._before: list[str] = []
        """What was read and not yielded, but for what is in `_text`: only unread text is copied when more comes."""
        self._num_before = 0
        self._text = ""
        self._yielded = 0
        """Up to where pieces of `_text` have been yielded."""
        self._position = 0
        self.has_ended = False

    def append(self, text: str) -> None:
        """Add text, and forget what was yielded."""
        if read := self._text[self._yielded : self._position]:
            self._before.append(read)
            self._num_before += len(read)
        self._text = self._text[self._position :] + text
        self._position = self._yielded = 0

    @property
    def pending(self) -> str:
        """What was read and not yielded."""
        return "".join([*self._before, self._text[self._yielded : self._position]])

    @property
    def num_pending(self) -> int:
        """The length of `pending`."""
        return self._num_before + self._position - self._yielded

    def take(self) -> str:
        """`pending`, which the caller yields as the source of a piece."""
        source, self._yielded = self.pending, self._position
        self._before, self._num_before = [], 0
        return source

    def go_back(self, length: int) -> None:
        """Read again from `length` characters behind the last piece."""
        again = [self._text]
        while self._num_before > length:
            again.append(self._before.pop())
            self._num_before -= len(again[-1])
        self._text = "".join(reversed(again))
        self._position = self._yielded + length - self._num_before

    def peek(self) -> Reading[str]:
        """The next character; nothing at the end."""
        while self._position == len(self._text):
            if self.has_ended:
                return ""
            yield None
        return self._text[self._position]

    def advance(self) -> None:
        """Read the character that `peek` returned."""
        self._position += 1

    def spaces(self) -> Reading[None]:
        """Read spaces and line breaks."""
        while (character := (yield from self.peek())) and character in SPACES:
            self.advance()

    def starts_with(self, *literals: str) -> Reading[str]:
        """Read the one of the literals that comes next, and return it; nothing is read if none does."""
        while True:
            ahead = self._text[self._position : self._position + max(map(len, literals))]
            if not self.has_ended and any(len(ahead) < len(one) and one.startswith(ahead) for one in literals):
                yield None
                continue
            found = max((one for one in literals if ahead.startswith(one)), key=len, default="")
            self._position += len(found)
            return found

    def expect(self, *literals: str) -> Reading[str]:
        """Read one of the literals.

        Raises:
            BrokenFormError: none of them comes next.
        """
        found = yield from self.starts_with(*literals)
        if not found:
            raise BrokenFormError
        return found

    def word(self, others: str = "", most: int = 128) -> Reading[str]:
        """Read letters, digits, underscores and some other characters, up to as many."""
        read: list[str] = []
        while (character := (yield from self.peek())) and (character.isalnum() or character in "_" + others):
            if len(read) == most:
                break
            read.append(character)
            self.advance()
        return "".join(read)

    def before(self, marker: str, most: int) -> Reading[str]:
        """Read a text up to a marker, and the marker.

        Raises:
            BrokenFormError: it is not within `most` characters.
        """
        begin, read = self.num_pending, list[str]()
        while True:
            end = self._text.find(marker, self._position, self._position + most + len(marker))
            if end >= 0:
                read.append(self._text[self._position : end])
                self._position = end + len(marker)
                return "".join(read)
            if self.has_ended or len(self._text) - self._position >= most + len(marker):
                self.go_back(begin)
                raise BrokenFormError
            searched = max(self._position, len(self._text) - len(marker) + 1)
            read.append(self._text[self._position : searched])
            most -= searched - self._position
            self._position = searched
            yield None

    def rest(self) -> Reading[None]:
        """Yield all that comes as text, to the end."""
        while not self.has_ended:
            if self._position < len(self._text):
                self._position = len(self._text)
                yield Text(self.take())
            else:
                yield None
        self._position = len(self._text)
        yield Text(self.take())

    def scan(self, scanner: Scanner) -> Reading[str]:
        """Have a scanner go through what is there, at least one character; returns what it makes of it.

        Raises:
            BrokenFormError: the output ends.
        """
        if not (yield from self.peek()):
            raise BrokenFormError
        self._position, made = scanner.scan(self._text, self._position)
        return made

    def until(
        self, markers: tuple[str, ...], make: Callable[[str], Piece] = Text, *, trims: bool = True
    ) -> Reading[str]:
        """Yield pieces up to the next marker, read that, and return it; nothing at the end.

        Args:
            markers: of which the longest counts where several begin at one place.
            make: a piece of text.
            trims: whether spaces before a marker belong to the marker.
        """
        pattern, beginnings, longest = _patterns(markers)
        while True:
            held = len(self._text) if self.has_ended else self._held_from(beginnings, longest)
            found = pattern.search(self._text, self._position)
            is_found = found is not None and (self.has_ended or found.start() < held)
            end = found.start() if found is not None and is_found else held
            if trims and (is_found or not self.has_ended):
                begin = max(self._position, end - _MOST_SPACES)
                end = begin + len(self._text[begin:end].rstrip(SPACES))
            if end > self._position:
                self._position = end
                yield make(self.take())
            if found is not None and is_found:
                self._position = found.end()
                return found.group()
            if self.has_ended:
                return ""
            yield None

    def _held_from(self, beginnings: frozenset[str], longest: int) -> int:
        """Where a marker may have begun that the text ends within; the text's end if nowhere."""
        end = len(self._text)
        first = max(self._position, end - longest + 1)
        return next((i for i in range(first, end) if self._text[i:] in beginnings), end)


@lru_cache(maxsize=64)
def _patterns(markers: tuple[str, ...]) -> tuple[re.Pattern[str], frozenset[str], int]:
    """What finds a marker, the beginnings of markers, and the length of the longest one."""
    longest_first = sorted(markers, key=len, reverse=True)
    beginnings = frozenset(marker[:length] for marker in markers for length in range(1, len(marker)))
    return re.compile("|".join(map(re.escape, longest_first))), beginnings, len(longest_first[0])


class GeneratorParser:
    """An `OutputParser` whose form is a generator, `read`."""

    MARKERS: ClassVar[tuple[str, ...]] = ()
    """Strings that tell the form's parts apart; if they are special tokens, they must stay in the text."""
    TEMPLATE: ClassVar[tuple[str, ...]] = ()
    """What a chat template has, all of it, whose model writes in this form; empty if that cannot be told."""

    def __init__(self) -> None:
        self.reader = Reader()
        self._reading = self.read()

    def read(self) -> Reading[None]:
        """Read the whole output."""
        raise NotImplementedError

    def feed(self, text: str) -> list[Piece]:
        """What is certain after more text."""
        self.reader.append(text)
        return self._read_on()

    def finish(self) -> list[Piece]:
        """What is left when the output ends."""
        self.reader.has_ended = True
        return self._read_on()

    def _read_on(self) -> list[Piece]:
        pieces: list[Piece] = []
        for piece in self._reading:
            if piece is None:
                break
            if piece.source or type(piece) not in (Piece, Text, Reasoning):
                pieces.append(piece)
        return pieces
