"""Audio cut where it is silent, for models that tell no times: the texts of the pieces, one behind the other.

Knows samples and where they are quiet; knows no models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from corellm.hookspecs import SpeechForm
from corellm.outputs import RequestOutput
from corellm.sampling_params import SamplingParams
from corellm_speech.reading import Asked, Piece
from corellm_speech.segments import Segment, Transcript

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from corellm.serving import ProcessedPrompt
    from corellm_speech.second_look import EngineCall

_PAUSE = 0.1
"""Seconds of which the energy says how quiet it is: shorter than a pause between words, longer than one in a word."""


def cuts(samples: NDArray[np.float32], rate: int, seconds: float) -> Iterator[tuple[int, int]]:
    """Yield where pieces of audio begin and end: at the quietest place of the last quarter that a piece may have.

    Args:
        samples: `[num_samples]`.
        rate: samples per second.
        seconds: of the longest piece. The last one has at least a quarter of it, too.
    """
    longest, start = int(seconds * rate), 0
    while len(samples) - start > longest:
        last = min(start + longest, len(samples) - longest // 4)
        first = last - longest // 4
        cut = first + _quietest(samples[first:last], int(_PAUSE * rate))
        yield start, cut
        start = cut
    yield start, len(samples)


def _quietest(samples: NDArray[np.float32], width: int) -> int:
    """Return the middle of the `width` samples with the least energy; of a longer pause, its own."""
    width = max(1, min(width, len(samples)))
    energy = np.concatenate(([0.0], np.cumsum(np.square(samples, dtype=np.float64))))
    sums = energy[width:] - energy[:-width]
    lowest = np.flatnonzero(sums == sums.min())
    return int(lowest[len(lowest) // 2]) + width // 2


class CutAudio:
    """A transcription of audio in pieces; a `corellm_speech.reading.Reading`.

    Args:
        form: of the model's family; None not to cut it.
        samples: of the audio.
        asked: what is asked for.
        prompt: returns the prompt's tokens for each piece; None to ask as for any other audio.

    Raises:
        RequestError: the model cannot be told what is asked for.
    """

    call: EngineCall | None = None

    def __init__(
        self,
        form: SpeechForm | None,
        samples: NDArray[np.float32],
        asked: Asked,
        prompt: Callable[[], Sequence[int] | None],
    ) -> None:
        self._samples, self._asked = samples, asked
        self._times = None if form is None else form.times
        self._seconds = None if form is None else len(samples) / form.sampling_rate
        whole = iter([(0, len(samples))])
        self._cuts = whole if form is None else cuts(samples, form.sampling_rate, form.seconds)
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self.segments: list[Segment] = []
        self._token_ids: Sequence[int] | None = None
        self.piece: Piece | None
        if self._hears_first():  # else it would hear the language behind what was said before
            self.piece = Piece(samples, (), SamplingParams(temperature=0, max_tokens=1, detokenize=False))
        else:
            self._token_ids = prompt()
            self.piece = self._next()

    def _hears_first(self) -> bool:
        """Whether the model has a context, and a language to hear before it."""
        asked = self._asked
        if self._times is None or not asked.context or asked.language:
            return False
        return self._times.prompt(None, asked.translate, asked.context, None) is None

    def _next(self) -> Piece | None:
        """Return the next piece."""
        cut = next(self._cuts, None)
        if cut is None:
            return None
        return Piece(self._samples[cut[0] : cut[1]], self._token_ids, self._asked.params)

    def take(self, prompt: ProcessedPrompt, output: RequestOutput) -> str:
        """Take in the output of `piece`; texts are joined by a space."""
        completion, asked = output.outputs[0], self._asked
        if self.piece is not None and self.piece.params is not asked.params:
            assert self._times is not None
            told = self._times.prompt(None, asked.translate, asked.context, completion.token_ids[0])
            self._token_ids = [*(told or ()), self._times.without]
            self.piece = self._next()
            return ""
        self._tokens += completion.token_ids
        text = completion.text.strip() if self._texts else completion.text
        new = f" {text}" if text and any(self._texts) else text
        self._texts.append(new)
        self.piece = self._next()
        return new

    def answer(self, result: Any) -> str:
        """Return nothing: there are no calls."""
        return ""

    def transcript(self) -> Transcript:
        """Return what is said."""
        return Transcript("".join(self._texts), self._tokens, self._seconds, self._language)

    @property
    def _language(self) -> str | None:
        """That was asked for, else what the prompt or the output says."""
        if self._times is None:
            return self._asked.language
        told = self._token_ids or self._times.prompt(self._asked.language, self._asked.translate, "", None) or ()
        named = (self._times.languages[one] for one in (*told, *self._tokens) if one in self._times.languages)
        return next(named, self._asked.language)
