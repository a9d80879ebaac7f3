"""`POST /v1/completions`."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from openai.types import Completion
from starlette.responses import Response

from corellm.engine.input_processor import ProcessedPrompt
from corellm.outputs import RequestOutput
from corellm.sampling_params import SamplingParams
from corellm.server.endpoints.replies import ERRORS, STREAM, JsonBody, json_response
from corellm.server.errors import ApiError
from corellm.server.requests.completion import CompletionRequest
from corellm.server.responses.completion import CompletionResponse
from corellm.server.responses.events import EventStream
from corellm.server.sampling import completion_params
from corellm.server.service import Service, all_results, exchange_of, merged


def completion_routes(service: Service) -> APIRouter:
    """The endpoint, for one model."""
    router = APIRouter(route_class=JsonBody)

    @router.post(
        "/v1/completions", responses={200: {"model": Completion, "content": STREAM}, **ERRORS}, response_model=None
    )
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        """Complete prompts."""
        model = service.check_model(body.model)
        params = completion_params(body, service.client.get_default_sampling_params(), service.config.limits)
        prompts = await prepare(body, request, params)
        response = CompletionResponse(
            f"cmpl-{uuid.uuid4().hex}", model, params.n, params.logprobs,
            echoes=await echoes(body) if body.echo else None, prompt_only=body.max_tokens == 0,
            include_usage=bool(body.stream_options and body.stream_options.include_usage),
        )  # fmt: skip
        names = [f"cmpl-{uuid.uuid4().hex}" for _ in prompts]
        exchange = exchange_of(request.scope)
        if body.stream:
            streams = [service.generate(exchange, p, params, name) for p, name in zip(prompts, names, strict=True)]
            return await EventStream.begun(events(body, response, streams))
        running = [
            asyncio.ensure_future(service.complete(exchange, prompt, params, name))
            for prompt, name in zip(prompts, names, strict=True)
        ]
        return json_response(response.whole(await all_results(running)))

    async def prepare(body: CompletionRequest, request: Request, params: SamplingParams) -> list[ProcessedPrompt]:
        """The prompts, all of them checked before the first one runs."""
        limit = service.config.limits.max_prompts
        if len(body.prompts) > limit:
            raise ApiError(400, f"prompt has {len(body.prompts)} prompts, {limit} are allowed", param="prompt")
        if len(body.prompts) * params.n > 4 * limit:
            raise ApiError(400, f"prompts times n are limited to {4 * limit}", param="n")
        if not body.prompts:
            raise ApiError(400, "prompt must have at least one prompt", param="prompt")
        salt, prepared = exchange_of(request.scope).salt, []
        for index, given in enumerate(body.prompts):
            where = "prompt" if len(body.prompts) == 1 else f"prompt[{index}]"
            prompt = await service.preparation.prompt(given, where, salt=salt, priority=body.priority)
            service.preparation.check_fit(prompt, params, is_capped=body.max_tokens is not None, where=where)
            prepared.append(prompt)
        return prepared

    async def echoes(body: CompletionRequest) -> list[str]:
        """The texts of the prompts."""
        tokenizer = await service.tokenizer()
        return [given if isinstance(given, str) else str(tokenizer.decode(given)) for given in body.prompts]

    async def events(
        body: CompletionRequest, response: CompletionResponse, streams: Sequence[AsyncGenerator[RequestOutput, None]]
    ) -> AsyncGenerator[dict[str, Any], None]:
        async with contextlib.aclosing(merged(streams)) as outputs:
            async for index, output in outputs:
                for chunk in response.chunks(index, output):
                    yield chunk
        if body.stream_options is not None and body.stream_options.include_usage:
            yield response.last_chunk()

    return router
