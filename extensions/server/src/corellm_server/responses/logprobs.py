"""Log-probabilities, in the forms of chat, of model responses and of completions."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

from corellm.outputs import CompletionOutput, Logprob, PositionLogprobs
from corellm.sampling_params import SamplingParams

_REPLACEMENT = "\ufffd"
_LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have."""


def num_reported(params: SamplingParams) -> int | None:
    """How many entries a position has beside its token's: the most likely ones, and where tokens are stated all that
    the engine reports; None for no log-probabilities.
    """
    return sys.maxsize if params.logprob_token_ids else params.logprobs


def chat_logprobs(output: CompletionOutput, num_top: int) -> dict[str, Any]:
    """A completion's log-probabilities as OpenAI's `ChoiceLogprobs`, one entry per token."""
    return {
        "content": [
            {**_entry(position[token]), "top_logprobs": [_entry(one) for one in _top(position, num_top)]}
            for token, position in zip(output.token_ids, output.logprobs or (), strict=True)
        ]
    }


def text_logprobs(output: CompletionOutput, num_top: int) -> list[dict[str, Any]]:
    """A completion's log-probabilities as OpenAI's `Logprob` of an output text, where bytes are always a list."""
    entries: list[dict[str, Any]] = chat_logprobs(output, num_top)["content"]
    for one in entries:
        for entry in (one, *one["top_logprobs"]):
            entry["bytes"] = entry["bytes"] or []
    return entries


class TextLogprobs:
    """The log-probabilities of an output's tokens, told apart by the parts of the text that they are of."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[dict[str, Any] | None, str]] = deque()
        """Entries of tokens whose text has not come yet, and what of it has not; None for an entry that was given."""

    def add(self, entries: Sequence[dict[str, Any]]) -> None:
        """Take those of the next tokens, as of `text_logprobs`."""
        self._waiting.extend((entry, entry["token"]) for entry in entries)

    def of(self, source: str, *, is_wanted: bool) -> list[dict[str, Any]]:
        """The entries of tokens that begin in the next part of the text; or end there, if where they begin has none.

        Args:
            source: the part.
            is_wanted: whether it has entries; without, those of its tokens are left out.
        """
        found: list[dict[str, Any]] = []
        position = 0
        while self._waiting and position < len(source):
            entry, text = self._waiting.popleft()
            rest = text[len(source) - position :]
            if source.startswith(text, position):
                position += len(text)
            elif rest and source.endswith(text[: len(source) - position]):
                self._waiting.appendleft((None if is_wanted else entry, rest))
                position = len(source)
            if is_wanted and entry is not None:  # also that of a special token, which the text is without
                found.append(entry)
        return found

    def left(self) -> list[dict[str, Any]]:
        """The entries of tokens at the end of the output that have no text."""
        found = [entry for entry, _ in self._waiting if entry is not None]
        self._waiting.clear()
        return found


def prompt_logprobs(positions: Sequence[PositionLogprobs | None]) -> list[dict[str, Any] | None]:
    """Log-probabilities of a prompt's tokens, by token id; None for its first."""
    return [
        None if position is None else {
            str(token): {"logprob": _value(one), "rank": one.rank, "decoded_token": one.decoded_token}
            for token, one in position.items()
        }
        for position in positions
    ]  # fmt: skip


def _entry(one: Logprob) -> dict[str, Any]:
    return {"token": _text(one), "logprob": _value(one), "bytes": _bytes(one)}


def _text(one: Logprob) -> str:
    return one.decoded_token or ""


def _value(one: Logprob) -> float:
    return max(one.logprob, _LOWEST)


def _bytes(one: Logprob) -> list[int] | None:
    """None for a token that is a part of a character, whose bytes the text does not have."""
    text = _text(one)
    return None if _REPLACEMENT in text else list(text.encode())


def _top(position: PositionLogprobs, num_top: int) -> list[Logprob]:
    return sorted(position.values(), key=lambda one: -one.logprob)[:num_top]


class TokenTable:
    """The log-probabilities of a text, token by token, with the places of tokens in it.

    Args:
        num_top: how many most likely tokens of each position.
    """

    def __init__(self, num_top: int) -> None:
        self._num_top = num_top
        self._offset = 0

    def take(self, token_ids: Sequence[int], positions: Sequence[PositionLogprobs | None]) -> dict[str, Any]:
        """The entries of the next tokens, as OpenAI's `Logprobs`.

        Args:
            token_ids: the tokens.
            positions: their log-probabilities; None for a token without any, as a prompt's first.
        """
        tokens: list[str] = []
        offsets, logprobs = [], []
        tops: list[dict[str, float] | None] = []
        for token, position in zip(token_ids, positions, strict=True):
            text = "" if position is None else _text(position[token])
            tokens.append(text)
            offsets.append(self._offset)
            self._offset += len(text)
            logprobs.append(None if position is None else _value(position[token]))
            tops.append(None if position is None else self._tops(position))
        return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}

    def _tops(self, position: PositionLogprobs) -> dict[str, float]:
        return {_text(one): _value(one) for one in _top(position, self._num_top)}
