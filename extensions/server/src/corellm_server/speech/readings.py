"""Runs a reading of `corellm-speech` through the engine: each piece is an ordinary request, one after another.

Knows readings and exchanges; which pieces there are is the reading's to know.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from corellm.errors import MultiModalError
from corellm.hookspecs import SpeechForm
from corellm.outputs import RequestOutput
from corellm.sampling_params import RequestOutputKind, SamplingParams
from corellm.serving import ProcessedPrompt
from corellm_server.errors import ApiError
from corellm_server.exchange import Exchange
from corellm_server.requests.audio import TranscriptionRequest
from corellm_server.responses.usage import finish_reason
from corellm_server.service import Service
from corellm_server.speech.request_checks import check_times, wants_times, wants_words

if TYPE_CHECKING:  # needs corellm-speech
    from corellm_speech.reading import Piece, Reading


class RunReading:
    """A reading, and what it takes to run it.

    Args:
        service: of the model.
        exchange: the request.
        body: of the request.
        reading: that is begun.
    """

    def __init__(self, service: Service, exchange: Exchange, body: TranscriptionRequest, reading: Reading) -> None:
        self._service, self._exchange, self._body = service, exchange, body
        self.reading = reading

    async def outputs(self) -> AsyncGenerator[tuple[str, RequestOutput], None]:
        """Run piece by piece; yields the text that came by each, and its output.

        Raises:
            ApiError, CorellmError: a piece is wrong, or failed.
        """
        service, exchange, is_capped = self._service, self._exchange, self._body.max_completion_tokens is not None
        while (piece := self.reading.piece) is not None:
            prompt = await self._prompt(piece)
            service.preparation.check_fit(prompt, piece.params, is_capped=is_capped, where="file")
            output = await service.complete(exchange, prompt, piece.params)
            finish_reason(output.outputs[0])  # raises if it was aborted
            in_pool = partial(service.preparation.in_pool, exchange, takes_long=True)
            text = await in_pool(partial(self.reading.take, prompt, output))  # which cuts the next piece
            if self.reading.call is not None:
                function, arguments = self.reading.call
                result = await service.client.in_engine_of(prompt, function, *arguments)
                text = await in_pool(partial(self.reading.answer, result))
            yield text, output

    async def _prompt(self, piece: Piece) -> ProcessedPrompt:
        preparation, exchange = self._service.preparation, self._exchange
        if piece.token_ids is None:
            return await preparation.audio(exchange, self._body, piece.item)
        return await preparation.prompt(exchange, piece.fields, "file", priority=None)


async def begun(
    service: Service, exchange: Exchange, body: TranscriptionRequest, params: SamplingParams
) -> tuple[RunReading | None, Any]:
    """The reading of a request's file; None if the whole can be asked for as any other audio, with it as an item.

    The item is None for a file that was not looked into.

    Args:
        service: of the model.
        exchange: the request.
        body: of the request.
        params: how to choose tokens.

    Raises:
        ApiError, CorellmError: the file is wrong, or the model cannot do what is asked for.
    """
    processor, in_pool = service.client.input_processor, service.preparation.in_pool
    form = await in_pool(exchange, lambda: processor.speech_form, takes_long=True)
    check_times(body, form)
    if form is None:
        return None, None
    samples = await in_pool(exchange, partial(_samples, processor, body.file.content), takes_long=True)
    service.hold(exchange, samples.nbytes)
    is_short = len(samples) <= form.seconds * form.sampling_rate and not wants_times(body)
    if is_short and not await in_pool(exchange, partial(_hears_first, form, body), takes_long=True):
        return None, samples
    begin = partial(_begun, processor, form, samples, body, params)
    return RunReading(service, exchange, body, await in_pool(exchange, begin, takes_long=True)), samples


def _hears_first(form: SpeechForm, body: TranscriptionRequest) -> bool:
    """Whether the model is told what was said before, and must hear the language before that.

    Raises:
        RequestError: the model cannot be told that.
    """
    if form.times is None or not body.prompt or not body.fits_a_form or body.language_alone:
        return False
    return form.times.prompt(None, body.TRANSLATES, body.prompt, None) is None


def _samples(processor: Any, content: bytes) -> Any:
    """The samples of a file at the model's rate.

    Raises:
        ApiError: there is no audio in it, or too much.
    """
    try:
        return processor.mm_processor.parse({"audio": [content]})["audio"].get(0)
    except MultiModalError as error:
        raise ApiError(error.status, f"file: {error}", param="file") from error


def _begun(
    processor: Any, form: SpeechForm, samples: Any, body: TranscriptionRequest, params: SamplingParams
) -> Reading:
    if find_spec("corellm_speech") is None:
        raise ApiError(
            400, f"file: the model reads {form.seconds:g} seconds at once; longer audio, times, and a prompt without a "
            "language need corellm-speech in the server (from a checkout: pip install ./extensions/speech)",
            param="file",
        )  # fmt: skip
    from corellm_speech.reading import Asked, begin

    if form.times is not None and not body.fits_a_form:
        body.check_tells_nothing()
    language, context = body.language_alone, body.prompt or ""
    whole = replace(params, output_kind=RequestOutputKind.FINAL_ONLY)
    asked = Asked(language, body.TRANSLATES, context, whole, wants_words(body))
    return begin(
        form, samples, asked, processor.tokenizer, lambda: None,
        vocab_size=processor.vocab_size, times=wants_times(body),
    )  # fmt: skip
