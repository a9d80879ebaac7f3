"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from corellm_server.dialects import MESSAGES_PATH
from corellm_server.endpoints.replies import ERRORS, STREAM, JsonBody, declared, json_response
from corellm_server.exchange import exchange_of
from corellm_server.requests.forms import schema_of
from corellm_server.requests.messages import CountTokensRequest, MessagesRequest
from corellm_server.requests.tools import demand_of, given_tools, strict_place
from corellm_server.responses.events import EventStream
from corellm_server.responses.messages import MessageResponse
from corellm_server.sampling import messages_params
from corellm_server.service import Service


class TextBlock(BaseModel):
    """Text of the output."""

    type: Literal["text"]
    text: str
    citations: None


class ThinkingBlock(BaseModel):
    """What the model thought."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(BaseModel):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(BaseModel):
    """Numbers of tokens; those of the prompt are the sum of all that have `input` in their names."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class Message(BaseModel):
    """The assistant's next message."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
    stop_sequence: str | None
    usage: MessageUsage


class TokensCount(BaseModel):
    """How many tokens a prompt has."""

    input_tokens: int


class MessageErrorDetail(BaseModel):
    """What went wrong."""

    type: str
    message: str


class MessageError(BaseModel):
    """The body of every response that is an error."""

    type: Literal["error"]
    error: MessageErrorDetail
    request_id: str


_ERRORS: dict[int | str, dict[str, Any]] = {status: {"model": MessageError} for status in ERRORS}


def message_routes(service: Service) -> APIRouter:
    """The endpoints, for one model."""
    router = APIRouter(route_class=JsonBody)

    @router.post(MESSAGES_PATH, **declared(Message, _ERRORS, content=STREAM))
    async def create_message(body: MessagesRequest, request: Request) -> Response:
        """Complete a conversation, as a message of Anthropic's API."""
        exchange = exchange_of(request.scope)
        model = service.check_model(body.model, "generate")
        defaults = service.client.get_default_sampling_params()
        params = await exchange.aside(lambda: messages_params(body, defaults, service.config.limits))
        asked = body.functions, body.function_choice, body.one_call
        prompt, params, form = await service.prepare(exchange, body, params, *asked, is_capped=False)
        response = MessageResponse(
            model, body.max_tokens, form, tells_cached=body.marks_cache, shows_thinking=body.shows_thinking,
            one_call=body.one_call,
        )  # fmt: skip
        if body.stream:
            return await EventStream.begun(service.generate(exchange, prompt, params), response.events)
        return json_response(response.whole(await service.complete(exchange, prompt, params)))

    @router.post(MESSAGES_PATH + "/count_tokens", **declared(TokensCount, _ERRORS))
    async def count_tokens(body: CountTokensRequest, request: Request) -> Response:
        """Count the tokens of a conversation's prompt, with those of its media and tools."""
        exchange = exchange_of(request.scope)
        service.check_model(body.model, "generate")
        tools = given_tools(body.functions, body.function_choice, service.config.limits.max_tools)
        demand, schema = demand_of(tools, body.function_choice, body.one_call), schema_of(body)
        strict = None if schema is not None else strict_place(body.functions)
        await exchange.aside(  # refuses tools that a message would be refused for
            lambda: service.forms.of(tools, body.chat_template, demand=demand, strict=strict, schema=schema)
        )
        prompt = await service.preparation.conversation(exchange, body, priority=None, tools=tools)
        return json_response({"input_tokens": len(prompt.token_ids)})

    return router
