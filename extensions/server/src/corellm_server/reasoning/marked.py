"""Reasoning between two markers, at the beginning of an output; the prompt may have begun it."""

from __future__ import annotations

from typing import ClassVar

from corellm_server.parsing.pieces import Piece, Reasoning, Text
from corellm_server.parsing.reader import SPACES, GeneratorParser, Reading


class ReasoningParser(GeneratorParser):
    """The base of parsers of reasoning: an `OutputParser` of one output. A subclass states the markers.

    Args:
        prompt: the text that the output goes on with.

    Attributes:
        begins_inside: whether the output begins with reasoning.
        is_closed: whether the prompt has ended it.
    """

    OPEN: ClassVar[str]
    CLOSE: ClassVar[str]
    IS_OPEN: ClassVar[bool] = False
    """Whether an output begins with reasoning unless the prompt has closed it."""

    def __init__(self, prompt: str = "") -> None:
        end = prompt[-256:].rstrip(SPACES)
        self.is_closed = end.endswith(self.CLOSE)
        self.begins_inside = end.endswith(self.OPEN) or (self.IS_OPEN and not self.is_closed)
        super().__init__()

    def __init_subclass__(cls) -> None:
        """State the markers."""
        super().__init_subclass__()
        cls.MARKERS = cls.MARKERS or (cls.OPEN, cls.CLOSE)

    @classmethod
    def last_marker(cls, prompt: str) -> str:
        """The marker that an output which the prompt has begun goes on behind; the closing one if there is none."""
        return cls.OPEN if prompt.rfind(cls.OPEN) > prompt.rfind(cls.CLOSE) else cls.CLOSE

    def read(self) -> Reading[None]:
        """Read reasoning, if there is any, and the text behind it."""
        yield from self.reader.spaces()
        is_open = yield from self.reader.starts_with(self.OPEN)
        if is_open or self.begins_inside:
            if is_open or self.reader.pending:
                yield from self.reader.spaces()
                yield Piece(self.reader.take())
            if (yield from self.reader.until((self.CLOSE,), Reasoning)):
                yield from self.reader.spaces()
                yield Piece(self.reader.take())
        yield Text(self.reader.take())
        yield from self.reader.rest()


class ThinkReasoning(ReasoningParser):
    """`<think>...</think>`, as of Qwen 3, GLM and most others."""

    OPEN, CLOSE = "<think>", "</think>"
    TEMPLATE: ClassVar[tuple[str, ...]] = ("</think>",)


class OpenThinkReasoning(ThinkReasoning):
    """The same of models that leave the first marker out, as DeepSeek R1 may: every output begins with reasoning."""

    TEMPLATE = ()
    IS_OPEN = True


class MistralReasoning(ReasoningParser):
    """`[THINK]...[/THINK]`, as of Mistral."""

    OPEN, CLOSE = "[THINK]", "[/THINK]"
    TEMPLATE = ("[/THINK]",)
