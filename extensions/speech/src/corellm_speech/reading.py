"""The transcription of one audio item: requests, one after another, and the text that their outputs are joined to.

A reading decides; who runs it asks for `piece`, gives its output to `take`, and goes on until there is no piece. Where
a reading then has a `call`, who runs it makes that in the engine, and gives the result to `answer`. Knows what an
adapter says of its family (`corellm.hookspecs.SpeechForm`); knows neither engines nor models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from corellm.errors import InvalidParameterError
from corellm.hookspecs import SpeechForm
from corellm.outputs import RequestOutput
from corellm.sampling_params import SamplingParams
from corellm_speech.retries import Retries
from corellm_speech.segments import Segment, Transcript

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from corellm.serving import ProcessedPrompt
    from corellm_speech.second_look import EngineCall


@dataclass(frozen=True)
class Asked:
    """What a transcription is asked for."""

    language: str | None = None
    """That is spoken; None if that is not known."""
    translate: bool = False
    """Whether the text is to be in English."""
    context: str = ""
    """What was said before, or names that may come."""
    params: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0, max_tokens=None))
    """How to choose tokens; `max_tokens` is of each piece."""
    words: bool = False
    """Whether to find the times of words."""
    retries: Retries = field(default_factory=Retries)
    """Which texts are good enough."""

    def check_without_times(self) -> None:
        """Refuse what only models can be asked for that tell times.

        Raises:
            InvalidParameterError: names it.
        """
        if self.words:
            raise InvalidParameterError("word_timestamps: this model tells no times", param="word_timestamps")
        for name, value in vars(self.retries).items():
            if value not in (None, ()):
                name = "temperature" if name == "temperatures" else name
                raise InvalidParameterError(
                    f"{name}: this model tells no times, so its audio is not read window by window; leave it out",
                    param=name,
                )


@dataclass(frozen=True)
class Piece:
    """One request to the engine."""

    item: Any
    """The audio item, as prompts have it."""
    token_ids: Sequence[int] | None
    """The prompt's; None to ask for the whole as for any other audio."""
    params: SamplingParams
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """The item's `mm_processor_kwargs`."""

    @property
    def fields(self) -> dict[str, Any]:
        """The prompt as a dictionary, whose tokens are none where there are none."""
        return {
            "prompt_token_ids": list(self.token_ids or ()),
            "multi_modal_data": {"audio": self.item},
            "mm_processor_kwargs": dict(self.kwargs),
        }


class Reading(Protocol):
    """A transcription that is begun."""

    piece: Piece | None
    """The next request; None at the end."""
    segments: list[Segment]
    """So far; always empty for a model that tells no times."""
    call: EngineCall | None
    """What is to be called in the engine (`LLM.in_engine`) before the next piece; None for nothing."""

    def take(self, prompt: ProcessedPrompt, output: RequestOutput) -> str:
        """Take in the finished output of `piece`, and return the text that came by it; none where there is a `call`.

        Args:
            prompt: what `piece` was made to.
            output: of it.
        """
        ...

    def answer(self, result: Any) -> str:
        """Take in the result of `call`, and return the text that came by it."""
        ...

    def transcript(self) -> Transcript:
        """Return what is said, at the end."""
        ...


def begin(
    form: SpeechForm | None,
    samples: NDArray[np.float32],
    asked: Asked,
    tokenizer: Any,
    prompt: Callable[[], Sequence[int] | None],
    *,
    vocab_size: int,
    times: bool,
) -> Reading:
    """Begin a transcription.

    Args:
        form: of the model's family; None if it reads audio of any length.
        samples: of the audio, `[num_samples]` at the model's rate.
        asked: what is asked for.
        tokenizer: the model's.
        prompt: returns the tokens that ask for the text of a piece without times.
        vocab_size: of the model.
        times: whether times are wanted, also of audio that the model reads at once.

    Raises:
        InvalidParameterError: times are wanted of a model that tells none.
        RequestError: the model cannot be told what is asked for.
    """
    from corellm_speech.pieces import CutAudio
    from corellm_speech.windows import WindowedAudio

    if form is None or form.times is None:
        if times:
            raise InvalidParameterError("this model tells no times", param="times")
        asked.check_without_times()
        return CutAudio(form, samples, asked, prompt)
    seconds = len(samples) / form.sampling_rate
    if times or asked.words or asked.retries.are_asked_for or seconds > form.seconds:
        return WindowedAudio(form.times, samples, seconds, asked, tokenizer, vocab_size)
    return CutAudio(form, samples, asked, prompt)
