"""`POST /tokenize`, `POST /detokenize`: how many tokens a request has, before paying for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from corellm.sampling_params import shown
from corellm.serving import CHEAP_CHARACTERS
from corellm_server.endpoints.replies import ERRORS, JsonBody, declared, json_response
from corellm_server.errors import ApiError
from corellm_server.exchange import exchange_of
from corellm_server.requests.tokens import DetokenizeRequest, TokenizeRequest
from corellm_server.service import Service


class Tokens(BaseModel):
    """A prompt's tokens, placeholders of items expanded."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Text(BaseModel):
    """The text of tokens."""

    prompt: str


def token_routes(service: Service) -> APIRouter:
    """The endpoints, for one model."""
    router = APIRouter(route_class=JsonBody, responses=ERRORS)
    processor = service.client.input_processor

    @router.post("/tokenize", **declared(Tokens))
    async def tokenize(body: TokenizeRequest, request: Request) -> Response:
        """The tokens of a text, or of a conversation with its media."""
        service.check_model(body.model)
        exchange = exchange_of(request.scope)
        if (body.prompt is None) == (not body.messages):
            raise ApiError(400, "give either prompt or messages", param="prompt")
        if body.prompt is None:
            prompt = await service.preparation.conversation(exchange, body, priority=None)
            tokens = prompt.token_ids
        elif body.add_special_tokens is False:
            text = body.prompt
            tokens = await service.preparation.in_pool(exchange, lambda: processor.tokenize(text), takes_long=True)
        else:
            named = {} if body.prompt_name is None else {"prompt_name": body.prompt_name}
            given = {"prompt": body.prompt, **named}
            prompt = await service.preparation.prompt(exchange, given, "prompt", priority=None)
            tokens = prompt.token_ids
        tokenizer = await service.client.get_tokenizer()

        def response() -> Response:
            result = {"count": len(tokens), "max_model_len": service.client.max_model_len, "tokens": tokens}
            if body.return_token_strs:
                result["token_strs"] = [str(text) for text in tokenizer.convert_ids_to_tokens(tokens)]
            return json_response(result)

        return await service.preparation.in_pool(exchange, response, takes_long=len(tokens) > CHEAP_CHARACTERS)

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeRequest, request: Request) -> Text:
        """The text of tokens, special ones included."""
        service.check_model(body.model)
        tokenizer = await service.client.get_tokenizer()
        exchange = exchange_of(request.scope)
        text = await service.preparation.in_pool(exchange, lambda: _text(tokenizer, body.tokens), takes_long=True)
        return Text(prompt=text)

    return router


def _text(tokenizer: Any, tokens: Sequence[int]) -> str:
    known = len(tokenizer)
    for index, token in enumerate(tokens):
        if not 0 <= token < known:
            where = f"tokens[{index}]"
            told = f"{where}: {shown(token)} is no token id of this model; they are below {known}"
            raise ApiError(400, told, param=where)
    return str(tokenizer.decode(tokens))
