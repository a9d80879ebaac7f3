"""`POST /v1/responses`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from openai.types import responses as types
from pydantic import create_model
from starlette.responses import Response

from corellm.sampling_params import SamplingParams
from corellm_server.endpoints.replies import ERRORS, STREAM, JsonBody, json_response
from corellm_server.exchange import exchange_of
from corellm_server.requests.responses import ResponsesRequest
from corellm_server.responses.events import EventStream, encoded
from corellm_server.responses.model_response import ModelResponse
from corellm_server.sampling import responses_params
from corellm_server.service import Service

_Item = types.ResponseOutputMessage | types.ResponseFunctionToolCall | types.ResponseReasoningItem
TextResponse = create_model(
    "Response", __base__=types.Response, __doc__="Messages, reasoning and calls.", instructions=(str | None, None),
    output=(list[_Item], ...), tools=(list[object], ...), tool_choice=(str, ...),
)  # fmt: skip
"""OpenAI's type without kinds of outputs and tools that there are not, which the OpenAPI document would list."""


def response_routes(service: Service) -> APIRouter:
    """The endpoint, for one model."""
    router = APIRouter(route_class=JsonBody)

    @router.post(
        "/v1/responses", responses={200: {"model": TextResponse, "content": STREAM}, **ERRORS}, response_model=None
    )
    async def create_response(body: ResponsesRequest, request: Request) -> Response:
        """Complete a conversation, as a model response."""
        exchange = exchange_of(request.scope)
        model = service.check_model(body.model, "generate")
        defaults = service.client.get_default_sampling_params()
        params = await exchange.aside(lambda: responses_params(body, defaults, service.config.limits))
        is_capped = body.max_output_tokens is not None
        asked = body.tools, body.tool_choice, body.parallel_tool_calls is False
        prompt, params, form = await service.prepare(exchange, body, params, *asked, is_capped=is_capped)
        response = ModelResponse(
            _settings(body, model, params), params.logprobs, form, one_call=body.parallel_tool_calls is False
        )
        if body.stream:
            exchange.error_events = lambda error: b"".join(map(encoded, response.failure(error)))
            return await EventStream.begun(service.generate(exchange, prompt, params), response.events)
        return json_response(response.whole(await service.complete(exchange, prompt, params)))

    return router


def _settings(body: ResponsesRequest, model: str, params: SamplingParams) -> dict[str, Any]:
    """What the response repeats of its request."""
    return {
        "model": model,
        "instructions": body.instructions,
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
