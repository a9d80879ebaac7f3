"""One output's chain of parsers: special tokens that are no markers, then reasoning, then tool calls.

Knows parsers by their protocol alone, and neither the request nor the response.
"""

from __future__ import annotations

from collections.abc import Sequence

from corellm_server.parsing.pieces import CallArguments, CallStart, Piece, Reasoning, Text
from corellm_server.parsing.reader import GeneratorParser, OutputParser, Reading


class OutputChain:
    """An `OutputParser` made of several: what one leaves as text, the next one reads.

    Args:
        parsers: in order.
    """

    def __init__(self, parsers: Sequence[OutputParser]) -> None:
        self._parsers = parsers

    def feed(self, text: str) -> list[Piece]:
        """What is certain after more text."""
        return self._through([Text(text)], 0)

    def finish(self) -> list[Piece]:
        """What is left when the output ends."""
        pieces: list[Piece] = []
        for number, parser in enumerate(self._parsers, 1):
            pieces += self._through(parser.finish(), number)
        return pieces

    def _through(self, pieces: list[Piece], first: int) -> list[Piece]:
        for parser in self._parsers[first:]:
            pieces = [
                one for piece in pieces for one in (parser.feed(piece.source) if type(piece) is Text else [piece])
            ]
        return pieces


class LeftOut(GeneratorParser):
    """Leaves strings out of the text: special tokens that are no markers, where those that are must be text.

    Args:
        literals: what to leave out.
    """

    def __init__(self, literals: Sequence[str]) -> None:
        self._literals = tuple(literals)
        super().__init__()

    def read(self) -> Reading[None]:
        """Read text, without the strings."""
        while (yield from self.reader.until(self._literals, trims=False)):
            yield Piece(self.reader.take())


def merged(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces that mean something, neighbours of the same kind and call joined."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if type(piece) is Piece:
            continue
        if isinstance(piece, (Text, Reasoning)) and type(piece) is type(last):
            joined[-1] = type(piece)(last.source + piece.source)
        elif isinstance(piece, CallArguments) and isinstance(last, CallArguments) and last.index == piece.index:
            joined[-1] = CallArguments(last.source + piece.source, piece.index, last.text + piece.text)
        elif piece.source or isinstance(piece, (CallStart, CallArguments)):
            joined.append(piece)
    return joined
