"""Whether a window's text is good enough: if not it is sampled again at a higher temperature, or the window is silent.

The rules are those of section 4.5 of Whisper's paper, as transformers' `generate` has them. Knows tokens and
probabilities; knows neither engines nor audio.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import Any, Self

from corellm.errors import InvalidParameterError
from corellm.sampling_params import shown

_LARGEST = sys.float_info.max
_LOW = 0.5
"""The next window is told of a text that was sampled below this temperature."""


@dataclass(frozen=True)
class Retries:
    """What is asked for; names are those of `generate`."""

    temperatures: tuple[float, ...] = ()
    """One after another, until a text is good enough; none for that of the sampling parameters alone."""
    compression_ratio_threshold: float | None = None
    """A text whose tokens zlib makes shorter than by this factor repeats itself too much."""
    logprob_threshold: float | None = None
    """A text whose mean log-probability is below this is unlikely."""
    no_speech_threshold: float | None = None
    """A window with an unlikely text is silent where the probability that nobody speaks is above this."""
    condition_on_prev_tokens: bool | None = None
    """Whether a window is told the text of those before; None as the checkpoint has it."""

    def __post_init__(self) -> None:
        for name in ("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold"):
            value = getattr(self, name)
            if value is not None and not _is_number(value):
                raise InvalidParameterError(f"{name} must be a number or None, got {shown(value)}", param=name)
        for one in self.temperatures:
            if not _is_number(one) or one < 0:
                raise InvalidParameterError(
                    f"temperature must be a number from 0, or several, got {shown(one)}", param="temperature"
                )

    @property
    def are_asked_for(self) -> bool:
        """Whether anything is."""
        return self != Retries()

    def completed(self, stated: Mapping[str, Any]) -> Self:
        """Return these, with what a checkpoint sets of the others.

        Raises:
            InvalidParameterError: they do not go together, or the checkpoint's are wrong.
        """
        more = {name: value for name, value in stated.items() if value is not None and getattr(self, name) is None}
        whole = replace(self, **more)
        if whole.no_speech_threshold is not None and whole.logprob_threshold is None:
            raise InvalidParameterError(
                "no_speech_threshold needs logprob_threshold: a window is silent only if its text is unlikely, too",
                param="no_speech_threshold",
            )
        return whole

    @property
    def need_probabilities(self) -> bool:
        """Whether a text's probability decides."""
        return self.logprob_threshold is not None

    def judge(self, tokens: Sequence[int], vocab_size: int, mean_logprob: float, no_speech: float) -> tuple[bool, bool]:
        """Return whether a text is to be sampled again, and whether its window is silent.

        Args:
            tokens: of the text, with that which ends it.
            vocab_size: of the model.
            mean_logprob, no_speech: of a second look; not read without `logprob_threshold`.
        """
        is_unlikely = self.logprob_threshold is not None and mean_logprob < self.logprob_threshold
        if is_unlikely and self.no_speech_threshold is not None and no_speech > self.no_speech_threshold:
            return False, True
        threshold = self.compression_ratio_threshold
        repeats = threshold is not None and _compression_ratio(tokens, vocab_size) > threshold
        return is_unlikely or repeats, False

    def goes_on_from(self, temperature: float) -> bool:
        """Whether the next window is told of a text that was sampled at a temperature."""
        return bool(self.condition_on_prev_tokens) and temperature < _LOW


def _is_number(value: Any) -> bool:
    """Whether a value is a number that a float can be."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST


def _compression_ratio(tokens: Sequence[int], vocab_size: int) -> float:
    """Return by what factor zlib makes a text's tokens shorter."""
    width = int(log2(vocab_size) / 8) + 1
    data = b"".join(token.to_bytes(width, "little") for token in tokens)
    return len(data) / len(zlib.compress(data))
