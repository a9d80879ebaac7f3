"""`POST /v1/responses`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from corellm.sampling_params import SamplingParams
from corellm_server.endpoints.replies import STREAM, JsonBody, declared, json_response
from corellm_server.exchange import exchange_of
from corellm_server.requests.responses import ResponsesRequest
from corellm_server.responses.events import EventStream, encoded, events_of
from corellm_server.responses.logprobs import num_reported
from corellm_server.responses.model_response import ModelResponse
from corellm_server.sampling import responses_params
from corellm_server.service import Service


def response_routes(service: Service) -> APIRouter:
    """The endpoint, for one model."""
    router = APIRouter(route_class=JsonBody)

    @router.post("/v1/responses", **declared("Response", content=STREAM))
    async def create_response(body: ResponsesRequest, request: Request) -> Response:
        """Complete a conversation, as a model response."""
        exchange, kept = exchange_of(request.scope), service.kept
        kept.check(body)
        model = service.check_model(body.model, "generate")
        defaults = service.client.get_default_sampling_params()
        params = await exchange.aside(lambda: responses_params(body, defaults, service.config.limits))
        is_capped = body.max_output_tokens is not None
        if body.previous_response_id is not None:
            body.go_on(await kept.conversation(exchange, body.previous_response_id))
        asked = body.tools, body.tool_choice, body.parallel_tool_calls is False
        prompt, params, form = await service.prepare(exchange, body, params, *asked, is_capped=is_capped)
        place = await kept.place(exchange, body)
        settings = {**_settings(body, model, params), "store": place is not None}
        response = ModelResponse(settings, num_reported(params), form, one_call=body.parallel_tool_calls is False)
        if body.background and place is not None:
            outputs = service.generate(exchange, prompt, params)
            run = await kept.begin(exchange, place, response, outputs, is_streamed=body.stream is True)
            service.hand_over(exchange, run)
            return await EventStream.of(run.follow(-1)) if body.stream else json_response(run.now)
        if body.stream:
            exchange.error_events = lambda error: b"".join(map(encoded, response.failure(error)))
            events = events_of(service.generate(exchange, prompt, params), response.events)
            return await EventStream.of(events if place is None else kept.keeping(place, events))
        whole = response.whole(await service.complete(exchange, prompt, params))
        return json_response(whole if place is None else await kept.keep(place, whole))

    return router


def _settings(body: ResponsesRequest, model: str, params: SamplingParams) -> dict[str, Any]:
    """What the response repeats of its request."""
    return {
        "model": model,
        "instructions": body.instructions,
        "background": body.background is True,
        "previous_response_id": body.previous_response_id,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "temperature": params.temperature,
        "text": {"format": (body.text and body.text.format) or {"type": "text"}},
        "top_p": params.top_p,
        "top_logprobs": params.logprobs or 0,
        "truncation": body.truncation or "disabled",
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "reasoning": {"effort": body.effort, "summary": None},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
    }
