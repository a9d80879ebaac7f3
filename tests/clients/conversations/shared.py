"""What the conversations have in common: the turns, and how outputs are reported. Needs nothing but Python.

python NAME.py URL MODEL IMAGE QUESTION...
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol


class Turns:
    """The user's side of a conversation: questions, the first of them with the image.

    Args:
        arguments: of the command line.
    """

    def __init__(self, arguments: list[str]) -> None:
        self.url, self.model, self.path, *self.questions = arguments

    @property
    def image(self) -> str:
        """The image as a `data:` URL."""
        return "data:image/png;base64," + base64.b64encode(Path(self.path).read_bytes()).decode()

    def __iter__(self) -> Iterator[tuple[str, str | None]]:
        """Each question, with the image or None."""
        for i, question in enumerate(self.questions):
            yield question, None if i else self.image


class Hold(Protocol):
    """Holds a conversation."""

    def __call__(self, turns: Turns, *, streamed: bool) -> list[str]:
        """The output of each turn."""


def converse(hold: Hold, ways: tuple[str, ...] = ("whole", "streamed")) -> None:
    """Hold the conversation in each way; print the outputs as JSON, in the last line."""
    turns = Turns(sys.argv[1:])
    print(json.dumps({way: hold(turns, streamed=way == "streamed") for way in ways}))
