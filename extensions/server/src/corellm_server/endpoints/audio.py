"""`POST /v1/audio/transcriptions`: a chat model is asked for the text of audio."""

from __future__ import annotations

from fastapi import APIRouter, Request
from openai.types.audio import Transcription
from starlette.responses import PlainTextResponse, Response

from corellm_server.endpoints.replies import ERRORS, checked_body, json_response
from corellm_server.exchange import exchange_of
from corellm_server.requests.audio import TranscriptionRequest
from corellm_server.responses.audio import TranscriptionResponse
from corellm_server.responses.events import EventStream
from corellm_server.sampling import transcription_params
from corellm_server.service import Service

_FORM = {"multipart/form-data": {"schema": TranscriptionRequest.model_json_schema()}}


def audio_routes(service: Service) -> APIRouter:
    """The endpoint, for one model."""
    router = APIRouter()

    @router.post(
        "/v1/audio/transcriptions", response_model=None,
        openapi_extra={"requestBody": {"required": True, "content": _FORM}},
        responses={200: {"model": Transcription}, **ERRORS},
    )  # fmt: skip
    async def create_transcription(request: Request) -> Response:
        """Write down what is said."""
        exchange = exchange_of(request.scope)
        body = checked_body(TranscriptionRequest, exchange.body)
        service.check_model(body.model, "generate")
        body.check_format()
        params = transcription_params(body, service.client.get_default_sampling_params(), service.config.limits)
        is_told = service.client.input_processor.max_states is None
        if not is_told:
            body.check_tells_nothing()
        prompt = await service.preparation.audio(exchange, body.file.content, body.instruction if is_told else "")
        is_capped = body.max_completion_tokens is not None
        service.preparation.check_fit(prompt, params, is_capped=is_capped, where="file")
        response = TranscriptionResponse()
        if body.stream:
            return await EventStream.begun(service.generate(exchange, prompt, params), response.events)
        whole = response.whole(await service.complete(exchange, prompt, params))
        return PlainTextResponse(whole["text"]) if body.response_format == "text" else json_response(whole)

    return router
