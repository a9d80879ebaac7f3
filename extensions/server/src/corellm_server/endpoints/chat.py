"""`POST /v1/chat/completions`."""

from __future__ import annotations

import uuid

from fastapi import APIRouter, Request
from starlette.responses import Response

from corellm_server.beams import beam_fields
from corellm_server.endpoints.replies import STREAM, JsonBody, declared, json_response
from corellm_server.exchange import exchange_of
from corellm_server.requests.chat import ChatRequest
from corellm_server.responses.chat import ChatResponse
from corellm_server.responses.events import EventStream
from corellm_server.responses.logprobs import num_reported
from corellm_server.responses.usage import Usage
from corellm_server.sampling import chat_params
from corellm_server.service import Service


def chat_routes(service: Service) -> APIRouter:
    """The endpoint, for one model."""
    router = APIRouter(route_class=JsonBody)

    @router.post("/v1/chat/completions", **declared("ChatCompletion", content=STREAM))
    async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
        """Complete a conversation."""
        exchange = exchange_of(request.scope)
        model = service.check_model(body.model, "generate")
        defaults = service.client.get_default_sampling_params()
        params = await exchange.aside(lambda: chat_params(body, defaults, service.config.limits))
        is_capped = body.max_tokens is not None or body.max_completion_tokens is not None
        asked = body.tools, body.tool_choice, body.parallel_tool_calls is False
        prompt, params, form = await service.prepare(exchange, body, params, *asked, is_capped=is_capped)
        beams = beam_fields(body, params, service.config.limits)
        response = ChatResponse(
            f"chatcmpl-{uuid.uuid4().hex}", model, num_reported(params),
            usage=Usage(**body.usage_options), form=form, with_token_ids=bool(body.return_token_ids),
            shows_reasoning=body.include_reasoning is not False, one_call=body.parallel_tool_calls is False,
            is_named=isinstance(body.tool_choice, dict),
        )  # fmt: skip
        if body.stream:
            return await EventStream.begun(service.generate(exchange, prompt, params), response.events)
        if beams is not None:
            return json_response(response.whole(await service.search(exchange, prompt, beams, params.n)))
        completed = await service.complete(exchange, prompt, params)
        if params.prompt_logprobs is None:
            return json_response(response.whole(completed))
        return await service.preparation.in_pool(  # tens of milliseconds for a thousand tokens
            exchange, lambda: json_response(response.whole(completed)), takes_long=True
        )

    return router
