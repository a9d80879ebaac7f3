"""What a completion says while it grows: text, reasoning and tool calls, told apart by a parser.

Knows pieces; the forms of responses are made of them by others.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from corellm.outputs import CompletionOutput
from corellm_server.output_forms import OutputForm
from corellm_server.parsing.output import merged
from corellm_server.parsing.pieces import CallArguments, CallStart, Piece, Reasoning, Text
from corellm_server.responses.usage import finish_reason


class GrowingMessage:
    """One completion.

    Args:
        form: how it is read.
        shows_reasoning: whether reasoning is reported.
        one_call: whether all calls but the first are left out.
    """

    def __init__(self, form: OutputForm, *, shows_reasoning: bool = True, one_call: bool = False) -> None:
        self._parser = form.parser()
        self._shows_reasoning, self._one_call = shows_reasoning, one_call
        self._end_of_reasoning = form.end_of_reasoning
        self.text = ""
        self.reasoning = ""
        """What was reported of it."""
        self.calls: list[tuple[CallStart, str]] = []
        """Calls, and their arguments so far."""
        self._num_tokens = self._num_characters = self._num_of_reasoning = 0
        self._tokens_at_end: int | None = None
        """Tokens up to the one that ends reasoning."""

    def take(self, completion: CompletionOutput) -> list[Piece]:
        """Add what is new; returns what is certain now, each kind joined."""
        return self.add(self.read(completion))

    def read(self, completion: CompletionOutput) -> Sequence[Piece]:
        """Count what is new; returns all pieces that are certain now, which `add` takes."""
        if self._end_of_reasoning in completion.token_ids and self._tokens_at_end is None:
            assert self._end_of_reasoning is not None
            self._tokens_at_end = self._num_tokens + completion.token_ids.index(self._end_of_reasoning) + 1
        self._num_tokens += len(completion.token_ids)
        self._num_characters += len(completion.text)
        if self._parser is None:
            return [Text(completion.text)]
        pieces = self._parser.feed(completion.text)
        return [*pieces, *self._parser.finish()] if completion.finished else pieces

    def add(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Add pieces; returns those that are reported, each kind joined."""
        new = [piece for piece in merged(pieces) if self._is_reported(piece)]
        for piece in new:
            self._add(piece)
        return new

    def _is_reported(self, piece: Piece) -> bool:
        if isinstance(piece, Reasoning):
            self._num_of_reasoning += len(piece.source)
            return self._shows_reasoning
        return not (isinstance(piece, (CallStart, CallArguments)) and self._one_call and piece.index > 0)

    def _add(self, piece: Piece) -> None:
        if isinstance(piece, Reasoning):
            self.reasoning += piece.source
        elif isinstance(piece, CallStart):
            self.calls.append((piece, ""))
        elif isinstance(piece, CallArguments):
            start, arguments = self.calls[-1]
            self.calls[-1] = start, arguments + piece.text
        else:
            self.text += piece.source

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens of reasoning; where its end is no token of its own, by its share of the characters."""
        if not self._num_of_reasoning:
            return 0
        if self._tokens_at_end is not None:
            return self._tokens_at_end
        if not (self.text or self.calls):
            return self._num_tokens
        return round(self._num_tokens * self._num_of_reasoning / max(1, self._num_characters))

    def finish_reason(self, completion: CompletionOutput) -> str | None:
        """Why it ended, in OpenAI's words; None while it grows. A call that a stop string cut off is none to run.

        Raises:
            ApiError: it was aborted.
        """
        reason = finish_reason(completion)
        if reason != "stop" or not self.calls:
            return reason
        is_cut = isinstance(completion.stop_reason, str) and not _is_json(self.calls[-1][1])
        return reason if is_cut else "tool_calls"


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    return True
