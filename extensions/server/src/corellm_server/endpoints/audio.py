"""`POST /v1/audio/transcriptions` and `/v1/audio/translations`: a model is asked for the text of audio."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from corellm.multimodal.chat.reading import Part
from corellm_server.conversation import check_counts
from corellm_server.endpoints.replies import checked_body, declared, json_response
from corellm_server.exchange import exchange_of
from corellm_server.requests.audio import TranscriptionRequest, TranslationRequest
from corellm_server.responses.audio import TranscriptionResponse
from corellm_server.responses.events import EventStream
from corellm_server.sampling import transcription_params
from corellm_server.service import Service
from corellm_server.speech.readings import begun
from corellm_server.speech.replies import ReadingReply
from corellm_server.speech.request_checks import check_format


def audio_routes(service: Service) -> APIRouter:
    """The endpoints, for one model."""
    router = APIRouter()

    @router.post("/v1/audio/transcriptions", **_documented(TranscriptionRequest, "Transcription"))
    async def create_transcription(request: Request) -> Response:
        """Write down what is said."""
        return await _text_of_audio(service, request, TranscriptionRequest)

    @router.post("/v1/audio/translations", **_documented(TranslationRequest, "Translation"))
    async def create_translation(request: Request) -> Response:
        """Write down in English what is said."""
        return await _text_of_audio(service, request, TranslationRequest)

    return router


def _documented(form: type[TranscriptionRequest], response: str) -> dict[str, Any]:
    """What the OpenAPI document says of an endpoint."""
    content = {"multipart/form-data": {"schema": form.model_json_schema()}}
    return {"openapi_extra": {"requestBody": {"required": True, "content": content}}, **declared(response)}


async def _text_of_audio(service: Service, request: Request, form: type[TranscriptionRequest]) -> Response:
    exchange = exchange_of(request.scope)
    body = checked_body(form, exchange.body)
    service.check_model(body.model, "generate")
    check_format(body)
    params = transcription_params(body, service.client.get_default_sampling_params(), service.config.limits)
    check_counts([Part("file", "audio", None)], 1, service.client.input_processor.mm_processor.limits)
    run, item = await begun(service, exchange, body, params)
    if run is not None:
        return await ReadingReply(body, run).response()
    prompt = await service.preparation.audio(exchange, body, item)
    is_capped = body.max_completion_tokens is not None
    service.preparation.check_fit(prompt, params, is_capped=is_capped, where="file")
    response = TranscriptionResponse()
    if body.stream:
        return await EventStream.begun(service.generate(exchange, prompt, params), response.events)
    whole = response.whole(await service.complete(exchange, prompt, params))
    return PlainTextResponse(whole["text"]) if body.response_format == "text" else json_response(whole)
