"""Pieces of an output: text, reasoning, and tool calls, each with what the model wrote for it.

The sources of all pieces, joined, are the output: no character is lost, whatever the model wrote. Data only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """What the model wrote that means nothing by itself: markers, and the spaces around them."""

    source: str
    """The characters of the output that it is made of."""


@dataclass(frozen=True, slots=True)
class Text(Piece):
    """Text for the reader: its source."""


@dataclass(frozen=True, slots=True)
class Reasoning(Piece):
    """What the model thinks before it answers: its source."""


@dataclass(frozen=True, slots=True)
class CallStart(Piece):
    """The beginning of a tool call."""

    index: int
    """Which of the output's calls it is, from 0."""
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments(Piece):
    """A piece of a call's arguments, which are a JSON object once the call is complete."""

    index: int
    text: str
