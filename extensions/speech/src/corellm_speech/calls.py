"""`LLM.transcribe`: readings, run side by side.

Knows arguments and requests; what the requests are is the readings' to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from corellm.errors import InvalidParameterError, UnsupportedModalityError
from corellm.known_fields import refusing
from corellm.llm import LLM
from corellm.sampling_params import SamplingParams
from corellm_speech.reading import Asked, Reading, begin
from corellm_speech.retries import Retries
from corellm_speech.segments import Transcript

if TYPE_CHECKING:
    from corellm.serving import AsyncLLM, InputProcessor, ProcessedPrompt

_SIDE_BY_SIDE = 32
"""Most items that are read at once: the samples of others are not in memory yet."""


def calls_of(llm: LLM | AsyncLLM) -> SpeechCalls | None:
    """Return the call of an engine; None for one that has none."""
    return SpeechCalls(llm) if isinstance(llm, LLM) else None


class SpeechCalls:
    """The method of `LLM`.

    Args:
        llm: whose it is.
    """

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    @refusing()
    def transcribe(
        self,
        audio: Any,
        *,
        language: str | None = None,
        translate: bool = False,
        prompt: str = "",
        times: bool = True,
        word_timestamps: bool = False,
        temperature: float | Sequence[float] | None = None,
        compression_ratio_threshold: float | None = None,
        logprob_threshold: float | None = None,
        no_speech_threshold: float | None = None,
        condition_on_prev_tokens: bool | None = None,
        sampling_params: SamplingParams | None = None,
    ) -> list[Transcript]:
        """Write down what is said in audio of any length.

        A model that tells times reads long audio as transformers' `generate(return_timestamps=True)` does. For one that
        tells none, longer audio than it reads at once is cut where it is silent.

        Args:
            audio: an item as prompts have it, or a list of items.
            language: that is spoken, as `"de"` or `"german"`; None where the model is to hear it.
            translate: whether the text is to be in English.
            prompt: what was said before, or names that may come.
            times: whether to ask for times, if the model tells them, also of audio that it reads at once.
            word_timestamps: whether to find when each word is said. It and what follows are as `generate` has them, for
                models that tell times.
            temperature: of sampling, in place of that of `sampling_params`. Of several each is tried, one after
                another, until a window's text is good enough.
            compression_ratio_threshold: a text is not good enough whose tokens zlib makes shorter than by this factor.
            logprob_threshold: nor one whose tokens' mean log-probability is below this.
            no_speech_threshold: a window with such a text is silent where the model says so with a higher probability.
            condition_on_prev_tokens: whether a window is told the text of those before. None, of this and of the
                thresholds, is as the checkpoint has it.
            sampling_params: how to choose tokens, `max_tokens` for each piece of the audio; None for the most likely
                ones, and as many as there are. With times, `n`, `logprobs`, `stop` and processors of logits have no
                effect.

        Returns:
            One transcript per item.

        Raises:
            UnsupportedModalityError: the model takes no audio.
            InvalidParameterError: it is asked in a conversation.
            RequestError, MediaError: an item is wrong, or the model cannot be told one of the others.
        """
        processor = self._llm.engine.input_processor
        if "audio" not in processor.mm_processor.limits:
            raise UnsupportedModalityError("transcribe: this model takes no audio", modality="audio")
        params = sampling_params or SamplingParams(temperature=0, max_tokens=None)
        temperatures = () if temperature is None else _several(temperature)
        thresholds = compression_ratio_threshold, logprob_threshold, no_speech_threshold
        retries = Retries(temperatures, *thresholds, condition_on_prev_tokens)
        asked = Asked(language, translate, prompt, replace(params, n=1), word_timestamps, retries)
        items = audio if isinstance(audio, list) else [audio]
        waiting, running, found = enumerate(items), dict[int, Reading](), dict[int, Transcript]()
        while len(found) < len(items):
            for index, item in islice(waiting, _SIDE_BY_SIDE - len(running)):
                running[index] = begin_reading(processor, item, asked, times=times)
            self._step(processor, list(running.values()))
            for index in [index for index, reading in running.items() if reading.piece is None]:
                found[index] = running.pop(index).transcript()
        return [found[index] for index in range(len(items))]

    def _step(self, processor: InputProcessor, readings: list[Reading]) -> None:
        """Run the next piece of each reading, and what is to be called in the engine then."""
        pieces = [reading.piece for reading in readings if reading.piece is not None]
        prompts: dict[int, ProcessedPrompt] = {}

        def prepared(index: int) -> ProcessedPrompt:
            prompts[index] = processor.process(pieces[index].fields)
            return prompts[index]

        prepare = [partial(prepared, index) for index in range(len(pieces))]
        wanted = [piece.params for piece in pieces]
        outputs = self._llm.run_prepared(prepare, wanted, use_tqdm=False, on_error="raise")
        for index, (reading, output) in enumerate(zip(readings, outputs, strict=True)):
            reading.take(prompts[index], output)
            if reading.call is not None:
                function, arguments = reading.call
                reading.answer(self._llm.in_engine(function, *arguments))


def _several(temperature: Any) -> tuple[Any, ...]:
    """Return temperatures that are tried.

    Raises:
        InvalidParameterError: there are none.
    """
    if not isinstance(temperature, Sequence):
        return (temperature,)
    if not temperature:
        raise InvalidParameterError("temperature must have at least one value, got none", param="temperature")
    return tuple(temperature)


def begin_reading(processor: InputProcessor, item: Any, asked: Asked, *, times: bool) -> Reading:
    """Begin the transcription of an item by a model that is asked in a form of its own.

    Args:
        processor: of the model.
        item: as prompts have it.
        asked: what is asked for.
        times: whether to ask for times, if the model tells them.

    Raises:
        InvalidParameterError: the model is asked in a conversation.
        RequestError, MediaError: as of `LLM.transcribe`.
    """
    samples = processor.mm_processor.parse({"audio": [item]})["audio"].get(0)
    form = processor.speech_form
    tells_times = form is not None and form.times is not None
    ask = partial(processor.transcription_prompt, asked.language, translate=asked.translate, context=asked.context)

    def prompt() -> list[int]:
        tokens = ask()
        if tokens is None and processor.prompt_room is None:
            raise InvalidParameterError(
                "transcribe: this model is asked in a conversation; give LLM.chat the audio as a part, and what to do "
                "with it as text"
            )
        return tokens or []

    return begin(
        form, samples, asked, processor.tokenizer, prompt, vocab_size=processor.vocab_size, times=times and tells_times
    )
