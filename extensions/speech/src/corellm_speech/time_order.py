"""Holds an output to the order of times: which tokens may come after those that have.

The rules are those of Whisper, as transformers' `WhisperTimeStampLogitsProcessor` has them:

- an output begins with a time;
- times come in pairs, the end of a segment and the beginning of the next, except at the end of the text;
- no time is before an earlier one;
- a time comes where all times together are more likely than any token that is none.

Knows tokens and logits; knows neither audio nor seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from corellm.errors import InvalidParameterError
from corellm_decoding import BatchedLogitsProcessor, SequenceTokens

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TimeOrder(BatchedLogitsProcessor):
    """The rules, for one model."""

    zero: int
    """The token of the first time; all from it on are times."""
    without: int
    """The token that says that no times come."""
    end: int
    """The token that ends a text; those below it are text."""
    most_first: int | None
    """Most steps before the first time; None for any number."""

    @classmethod
    def of(cls, arguments: Mapping[str, Any], vocab_size: int) -> TimeOrder:
        """Return the rules for a processor's arguments.

        Raises:
            InvalidParameterError: the arguments are others than a model's.
        """
        names = {"zero", "without", "end", "most_first"}
        values = [value for name, value in arguments.items() if name != "most_first" or value is not None]
        are_tokens = all(type(value) is int and 0 <= value < vocab_size for value in values)
        if arguments.keys() != names or not are_tokens or not arguments["zero"]:  # there is text below it
            raise InvalidParameterError(
                f"logits_processors: speech-times takes {', '.join(sorted(names))}, token ids below {vocab_size}; got "
                f"{dict(arguments)!r:.100}; LLM.transcribe gives them",
                param="logits_processors",
            )
        return cls(**arguments)

    def __call__(self, logits: Tensor, sequences: Sequence[SequenceTokens]) -> Tensor:
        """Return the logits, minus infinity for tokens that may not come."""
        logits[:, self.without] = -inf
        for row, one in zip(logits, sequences, strict=True):
            self._forbid(row, one.output_token_ids)
        logprobs = logits.log_softmax(dim=-1)
        of_times = logprobs[:, self.zero :].logsumexp(dim=-1)
        of_text = logprobs[:, : self.zero].max(dim=-1).values
        logits[:, : self.zero].masked_fill_((of_times > of_text)[:, None], -inf)
        return logits

    def _forbid(self, row: Tensor, output: Sequence[int]) -> None:
        """Give tokens that may not come after an output minus infinity.

        Args:
            row: `[vocab]`; changed.
            output: the tokens before.
        """
        if not output:
            row[: self.zero] = -inf
            if self.most_first is not None:
                row[self.zero + self.most_first + 1 :] = -inf
            return
        is_time = output[-1] >= self.zero
        is_pair = is_time and (len(output) < 2 or output[-2] >= self.zero)
        if is_pair:
            row[self.zero :] = -inf
        elif is_time:
            row[: self.end] = -inf
        latest = next((token for token in reversed(output) if token >= self.zero), None)
        if latest is not None:  # the second of a pair may be as late as the first
            row[self.zero : latest + (0 if is_time and not is_pair else 1)] = -inf
