"""The blocks of a message's content: text, thinking, or a call of a tool, while they grow.

Knows what Anthropic's clients expect of each: its object, and its events but for their index.
"""

from __future__ import annotations

from typing import Any

import msgspec

from corellm_server.parsing.pieces import CallArguments, CallStart, Piece, Reasoning


class ContentBlock:
    """One block; of text, unless a subclass is another."""

    def __init__(self) -> None:
        self.source = ""
        """What the model wrote for it."""

    def takes(self, piece: Piece) -> bool:
        """Whether a piece goes on with it."""
        return not isinstance(piece, (CallStart, CallArguments, Reasoning))

    def begun(self) -> dict[str, Any]:
        """The block before anything was added."""
        return text_block("")

    def add(self, piece: Piece) -> dict[str, Any] | None:
        """Add a piece; returns its delta, if it has one."""
        self.source += piece.source
        return {"type": "text_delta", "text": piece.source} if piece.source else None

    def whole(self) -> dict[str, Any]:
        """The block as it is now."""
        return text_block(self.source)


class ThinkingBlock(ContentBlock):
    """What the model thought."""

    def takes(self, piece: Piece) -> bool:
        """Whether a piece goes on with it."""
        return isinstance(piece, Reasoning)

    def begun(self) -> dict[str, Any]:
        """The block before anything was added."""
        return {"type": "thinking", "thinking": "", "signature": ""}

    def add(self, piece: Piece) -> dict[str, Any] | None:
        """Add a piece; returns its delta."""
        self.source += piece.source
        return {"type": "thinking_delta", "thinking": piece.source}

    def whole(self) -> dict[str, Any]:
        """The block as it is now."""
        return {**self.begun(), "thinking": self.source}


class ToolUseBlock(ContentBlock):
    """A call of a tool.

    Args:
        start: what begins it.
    """

    def __init__(self, start: CallStart) -> None:
        super().__init__()
        self._start, self._arguments = start, ""

    def takes(self, piece: Piece) -> bool:
        """Whether a piece goes on with it."""
        return isinstance(piece, CallArguments)

    def begun(self) -> dict[str, Any]:
        """The block before anything was added."""
        return {"type": "tool_use", "id": CALL_PREFIX + self._start.id, "name": self._start.name, "input": {}}

    def add(self, piece: Piece) -> dict[str, Any] | None:
        """Add a piece; returns its delta, if it has one."""
        self.source += piece.source
        if not isinstance(piece, CallArguments) or not piece.text:
            return None
        self._arguments += piece.text
        return {"type": "input_json_delta", "partial_json": piece.text}

    def whole(self) -> dict[str, Any]:
        """The block as it is now; of text, where the arguments are no object."""
        try:
            arguments = msgspec.json.decode(self._arguments)
        except (msgspec.MsgspecError, ValueError, RecursionError):  # they were cut off, or JSON has no such number
            arguments = None
        return {**self.begun(), "input": arguments} if isinstance(arguments, dict) else super().whole()


CALL_PREFIX = "toolu_"
"""What ids of calls begin with here; the model's template gets them without, as some take ids of one length only."""


def block_of(piece: Piece) -> ContentBlock:
    """The block that a piece begins."""
    if isinstance(piece, CallStart):
        return ToolUseBlock(piece)
    return ThinkingBlock() if isinstance(piece, Reasoning) else ContentBlock()


def text_block(text: str) -> dict[str, Any]:
    """A block of text."""
    return {"type": "text", "text": text, "citations": None}
