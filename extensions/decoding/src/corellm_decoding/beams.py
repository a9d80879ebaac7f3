"""A search with beams over the outputs of one prompt: which outputs to follow, and which ended.

Knows tokens and log-probabilities, and takes the steps that transformers' `generate(num_beams=)` takes; knows neither
prompts nor what computes log-probabilities.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from corellm.outputs import Logprob, PositionLogprobs
from corellm_decoding.beam_params import BeamSearchParams


@dataclass(frozen=True)
class Beam:
    """An output, or the beginning of one."""

    token_ids: tuple[int, ...] = ()
    logprob: float = 0.0
    """Sum over its tokens."""
    positions: tuple[PositionLogprobs, ...] = ()
    """What was reported at each of its tokens."""
    ends: bool = False
    """Whether its last token ended it."""

    def followed_by(self, token: int, logprob: float, position: PositionLogprobs, *, ends: bool) -> Beam:
        """Return the beam with one token more; `logprob` is the new sum."""
        return Beam((*self.token_ids, token), logprob, (*self.positions, position), ends)


class Beams:
    """The outputs of one prompt while they are searched.

    Args:
        params: of the search.
        eos_token_ids: tokens that end an output.
        max_tokens: most tokens of an output.

    Attributes:
        running: the outputs to be continued, the most likely one first; at first the empty one alone.
        finished: outputs that ended, with their scores, the best one first.
    """

    def __init__(self, params: BeamSearchParams, eos_token_ids: frozenset[int], max_tokens: int) -> None:
        self._params, self._eos_token_ids, self._max_tokens = params, eos_token_ids, max_tokens
        self.running = [Beam()]
        self.finished: list[tuple[float, Beam]] = []
        self.num_candidates = max(2, 1 + len(eos_token_ids)) * params.beam_width
        """Continuations that are looked at in each step: enough for as many that do not end as there are beams."""
        self.num_needed = params.beam_width + len(eos_token_ids)
        """Tokens of each running output that can be among those that count: an output that ends counts only if it is
        one of the best continuations, as many as there are beams."""

    def take(self, found: Sequence[PositionLogprobs]) -> None:
        """Go on by one token.

        Args:
            found: the most likely next tokens of each running output, at least `num_needed`.
        """
        width, running = self._params.beam_width, list[Beam]()
        is_full = self._params.early_stopping is True and len(self.finished) == width
        for place, beam in enumerate(self._candidates(found)):
            if not (beam.ends or len(beam.token_ids) == self._max_tokens):
                running.append(beam)
            elif place < width and not is_full:
                self.finished.append((self._score(beam.logprob, len(beam.token_ids)), beam))
        self.running = running[:width]
        self.finished = sorted(self.finished, key=lambda one: -one[0])[:width]
        if self._is_decided():
            self.running = []

    def _candidates(self, found: Sequence[PositionLogprobs]) -> list[Beam]:
        """Return the most likely continuations of all running outputs, in order."""
        ends = self._eos_token_ids
        every = (
            (beam.logprob + entry.logprob, -number, -token)
            for number, (beam, position) in enumerate(zip(self.running, found, strict=True))
            for token, entry in position.items()
            if entry.logprob > -math.inf
        )
        return [
            self.running[-number].followed_by(-token, logprob, found[-number], ends=-token in ends)
            for logprob, number, token in heapq.nlargest(self.num_candidates, every)
        ]

    def _score(self, logprob: float, num_tokens: int) -> float:
        return logprob / float(num_tokens**self._params.length_penalty)

    def _is_decided(self) -> bool:
        """Whether no running output is to be followed further."""
        params = self._params
        if not self.running or len(self.finished) < params.beam_width:
            return not self.running
        if params.early_stopping is True:
            return True
        best = self.running[0]
        longest = params.early_stopping == "never" and params.length_penalty > 0
        num_tokens = self._max_tokens if longest else len(best.token_ids)
        return self._score(best.logprob, num_tokens) <= self.finished[-1][0]


def at_temperature(position: PositionLogprobs, temperature: float) -> PositionLogprobs:
    """Return the log-probabilities of a whole vocabulary at another temperature."""
    scaled: Mapping[int, float] = {token: entry.logprob / temperature for token, entry in position.items()}
    highest = max(scaled.values())
    total = highest + math.log(math.fsum(math.exp(value - highest) for value in scaled.values()))
    return {token: Logprob(scaled[token] - total, entry.rank, entry.decoded_token) for token, entry in position.items()}
