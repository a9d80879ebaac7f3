"""The items of a model response: a message, reasoning, or a call of a function, while it grows.

Knows what OpenAI's clients expect of each: its object, and its events but for their numbers.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from corellm_server.parsing.pieces import CallArguments, CallStart, Piece, Reasoning

Event = tuple[str, Mapping[str, Any]]
"""What comes after `response.` in its type, and its fields."""


class OutputItem:
    """One item; a message, unless a subclass is another.

    Args:
        index: its place in the output.
    """

    prefix = "msg"
    delta_kind, done_kind, done_field = "output_text.delta", "output_text.done", "text"

    def __init__(self, index: int) -> None:
        self.index, self.id, self.text = index, f"{self.prefix}_{uuid.uuid4().hex}", ""
        self.logprobs: list[dict[str, Any]] = []

    def whole(self, status: str) -> dict[str, Any]:
        """The item as it is now."""
        return {"id": self.id, "type": "message", "role": "assistant", "status": status, "content": [self.part()]}

    def part(self) -> dict[str, Any]:
        """Its one part."""
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs}

    def takes(self, piece: Piece) -> bool:
        """Whether a piece goes on with it."""
        return not isinstance(piece, (CallStart, CallArguments, Reasoning))

    def beginning(self) -> Iterator[Event]:
        """The events when it is new."""
        yield "output_item.added", {"output_index": self.index, "item": {**self.whole("in_progress"), "content": []}}
        yield "content_part.added", {**self.place, "part": self.part()}

    def add(self, text: str, logprobs: list[dict[str, Any]]) -> Event:
        """Add text; returns its event."""
        self.text += text
        self.logprobs += logprobs
        return self.delta_kind, {**self.place, "delta": text, **self._of_text(logprobs)}

    def end(self, status: str) -> Iterator[Event]:
        """The events when it is complete."""
        yield self.done_kind, {**self.place, self.done_field: self.text, **self._of_text(self.logprobs)}
        yield "content_part.done", {**self.place, "part": self.part()}
        yield "output_item.done", {"output_index": self.index, "item": self.whole(status)}

    def _of_text(self, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        return {"logprobs": logprobs}

    @property
    def place(self) -> dict[str, Any]:
        """Where its text is."""
        return {"item_id": self.id, "output_index": self.index, "content_index": 0}


class ReasoningItem(OutputItem):
    """What the model thought."""

    prefix = "rs"
    delta_kind, done_kind = "reasoning_text.delta", "reasoning_text.done"

    def whole(self, status: str) -> dict[str, Any]:
        """The item as it is now."""
        return {"id": self.id, "type": "reasoning", "summary": [], "content": [self.part()], "status": status}

    def part(self) -> dict[str, Any]:
        """Its one part."""
        return {"type": "reasoning_text", "text": self.text}

    def takes(self, piece: Piece) -> bool:
        """Whether a piece goes on with it."""
        return isinstance(piece, Reasoning)

    def _of_text(self, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        return {}


class CallItem(OutputItem):
    """A call of a function; its text is the arguments.

    Args:
        index: its place in the output.
        start: what begins it.
    """

    prefix = "fc"
    delta_kind = "function_call_arguments.delta"

    def __init__(self, index: int, start: CallStart) -> None:
        super().__init__(index)
        self._start = start

    def whole(self, status: str) -> dict[str, Any]:
        """The item as it is now."""
        return {
            "id": self.id, "type": "function_call", "call_id": self._start.id, "name": self._start.name,
            "arguments": self.text, "status": status,
        }  # fmt: skip

    def takes(self, piece: Piece) -> bool:
        """Whether a piece goes on with it."""
        return isinstance(piece, CallArguments)

    def beginning(self) -> Iterator[Event]:
        """The events when it is new."""
        yield "output_item.added", {"output_index": self.index, "item": self.whole("in_progress")}

    def end(self, status: str) -> Iterator[Event]:
        """The events when it is complete."""
        done = {**self.place, "name": self._start.name, "arguments": self.text}
        yield "function_call_arguments.done", done
        yield "output_item.done", {"output_index": self.index, "item": self.whole(status)}

    def _of_text(self, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        return {}

    @property
    def place(self) -> dict[str, Any]:
        """Where its arguments are."""
        return {"item_id": self.id, "output_index": self.index}


def item_of(piece: Piece, index: int) -> OutputItem:
    """The item that a piece begins."""
    if isinstance(piece, CallStart):
        return CallItem(index, piece)
    return ReasoningItem(index) if isinstance(piece, Reasoning) else OutputItem(index)


def text_of(piece: Piece) -> str:
    """What a piece adds to its item."""
    return piece.text if isinstance(piece, CallArguments) else "" if isinstance(piece, CallStart) else piece.source
