"""What all forms of tool calls share: text up to a marker, calls behind it, and text again where a call is broken.

Knows no form; a form reads one call with `start` and `arguments`.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn

from corellm_server.parsing.json_reader import read_json
from corellm_server.parsing.pieces import CallArguments, CallStart, Piece, Text
from corellm_server.parsing.reader import SPACES, BrokenFormError, GeneratorParser, Reading

_NAME = re.compile(r"[\w.:/-]{1,128}")
_IDS = string.ascii_letters + string.digits
_NAMES = ("name", "function")
_ARGUMENTS = ("arguments", "parameters")


class ToolParser(GeneratorParser):
    """The base of parsers of tool calls: an `OutputParser` of one output.

    A subclass states the markers that calls begin with, and reads what follows one. A call is yielded as soon as its
    name is certain; if it breaks later, its arguments end there, and the rest is text.

    Args:
        tools: of the request, as OpenAI has them.
    """

    WRITTEN: ClassVar[tuple[str, str, str] | None] = None
    """What a call has before its name, between that and its arguments, and behind these; None if they are no JSON."""
    SEPARATOR: ClassVar[str] = "\n"
    """What is between two calls."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self.functions: dict[str, Mapping[str, Any]] = {
            tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools
        }
        self.num_calls = 0
        super().__init__()

    def read(self) -> Reading[None]:
        """Read text and calls by turns."""
        while marker := (yield from self.reader.until(self.MARKERS)):
            yield from self.attempt(self.calls(marker))

    def calls(self, marker: str) -> Reading[None]:
        """Read what follows a marker, to the end of the last call that belongs to it.

        Raises:
            BrokenFormError: it is no call.
        """
        raise NotImplementedError

    def attempt(self, reading: Reading[None]) -> Reading[None]:
        """Read calls; where they are broken, what was not yielded is text, and is searched again but for its marker."""
        try:
            yield from reading
        except BrokenFormError:
            pending = self.reader.pending
            if not self.reader.has_ended:
                begin = len(pending) - len(pending.lstrip(SPACES))
                marker = next((one for one in self.MARKERS if pending.startswith(one, begin)), "")
                self.reader.go_back(begin + len(marker))
            yield Text(self.reader.take())
        else:
            yield from self.reader.spaces()
            yield Piece(self.reader.take())

    def start(self, name: str) -> CallStart:
        """The beginning of the next call; what was read becomes its source.

        Raises:
            BrokenFormError: it is no name.
        """
        if not _NAME.fullmatch(name):
            raise BrokenFormError
        self.num_calls += 1
        call_id = "".join(secrets.choice(_IDS) for _ in range(9))  # templates of Mistral take no other length
        return CallStart(self.reader.take(), self.num_calls - 1, call_id, name)

    def arguments(self, text: str) -> CallArguments:
        """A piece of the last call's arguments; what was read becomes its source."""
        return CallArguments(self.reader.take(), self.num_calls - 1, text)

    def streamed_arguments(self, name: str) -> Reading[None]:
        """Yield a call whose arguments, a JSON object, come next: its start, and the object while it is read.

        Raises:
            BrokenFormError: they are no object; or are broken, the call then ends there.
        """
        yield from self.reader.spaces()
        if (yield from self.reader.peek()) != "{":
            raise BrokenFormError
        start = self.start(name)
        yield start
        yield from read_json(self.reader, lambda source, text: CallArguments(source, start.index, text))

    def json_call(self, *ends: str, needs_arguments: bool = False, only_known: bool = False) -> Reading[None]:
        """Read a call that is a JSON object with `name` and `arguments` (or `parameters`).

        Args:
            ends: what also ends it, where its last brace is missing.
            needs_arguments: whether one without them is no call.
            only_known: whether one of a tool that the request has not is no call.

        Raises:
            BrokenFormError: it is no such object.
        """
        name: str | None = None
        early: str | None = None
        has_arguments = False
        yield from self.reader.expect("{")
        while True:
            yield from self.reader.spaces()
            key = json.loads((yield from read_json(self.reader, opening='"')))
            yield from self.reader.spaces()
            yield from self.reader.expect(":")
            if key in _NAMES and name is None:
                name = json.loads((yield from read_json(self.reader, opening='"')))
                if only_known and name not in self.functions:
                    raise BrokenFormError
            elif key in _ARGUMENTS and not has_arguments:
                has_arguments = True
                yield from self.reader.spaces()
                if name is not None and (yield from self.reader.peek()) == "{":
                    yield from self.streamed_arguments(name)
                else:
                    early = _object_of((yield from read_json(self.reader)))
            else:
                yield from read_json(self.reader)
            yield from self.reader.spaces()
            if (yield from self.reader.expect(",", "}", *ends)) != ",":
                break
        if name is None or (needs_arguments and not has_arguments):
            raise BrokenFormError
        if early is not None or not has_arguments:
            yield self.start(name)
            yield self.arguments(early or "{}")


def _object_of(text: str) -> str:
    """Arguments as a JSON object: themselves, what a string of JSON holds, or an empty one for null.

    Raises:
        BrokenFormError: they are none of these.
    """
    value = read_value(text)
    if isinstance(value, str) and value:
        text, value = value, read_value(value)
    if value is None or value == "":
        return "{}"
    if not isinstance(value, dict):
        raise BrokenFormError
    return text


def read_value(text: str) -> Any:
    """A value of JSON.

    Raises:
        BrokenFormError: it is none.
    """
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise BrokenFormError from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)
