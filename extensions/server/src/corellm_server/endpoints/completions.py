"""`POST /v1/completions`."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from corellm.sampling_params import SamplingParams
from corellm.serving import ProcessedPrompt
from corellm_server.beams import beam_fields
from corellm_server.endpoints.replies import STREAM, JsonBody, declared, json_response
from corellm_server.errors import ApiError
from corellm_server.exchange import Exchange, exchange_of
from corellm_server.requests.completions import CompletionRequest, Prompt
from corellm_server.responses.completions import CompletionResponse
from corellm_server.responses.events import EventStream
from corellm_server.responses.logprobs import num_reported
from corellm_server.responses.usage import Usage
from corellm_server.sampling import completion_params
from corellm_server.service import Service
from corellm_server.tasks import all_results, merged


def completion_routes(service: Service) -> APIRouter:
    """The endpoint, for one model."""
    router = APIRouter(route_class=JsonBody)

    @router.post("/v1/completions", **declared("Completion", content=STREAM))
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        """Complete prompts."""
        exchange = exchange_of(request.scope)
        model = service.check_model(body.model, "generate")
        defaults = service.client.get_default_sampling_params()
        params = await exchange.aside(lambda: completion_params(body, defaults, service.config.limits))
        await service.preparation.check_form(exchange, body, params)
        beams = beam_fields(body, params, service.config.limits)
        given = body.prompts
        prompts = await _prepare(service, body, given, exchange, params, beams)
        response = CompletionResponse(
            f"cmpl-{uuid.uuid4().hex}", model, len(prompts), params.n, num_reported(params),
            echoes=await _echoes(service, exchange, given) if body.echo else None, prompt_only=body.max_tokens == 0,
            usage=Usage(**body.usage_options),
        )  # fmt: skip
        if body.stream:
            streams = [service.generate(exchange, prompt, params) for prompt in prompts]
            return await EventStream.begun(merged(streams), lambda numbered: response.events(*numbered))
        outputs = await all_results(
            service.complete(exchange, prompt, params)
            if beams is None
            else service.search(exchange, prompt, beams, params.n)
            for prompt in prompts
        )
        return json_response(response.whole(outputs))

    return router


async def _prepare(
    service: Service,
    body: CompletionRequest,
    given: Sequence[Prompt],
    exchange: Exchange,
    params: SamplingParams,
    beams: dict[str, Any] | None,
) -> list[ProcessedPrompt]:
    """The prompts, all of them checked before the first one runs."""
    limit = service.config.limits.max_prompts
    if not given:
        raise ApiError(400, "prompt must have at least one prompt", param="prompt")
    if len(given) > limit:
        raise ApiError(400, f"prompt has {len(given)} prompts, {limit} are allowed", param="prompt")
    name, number = ("n", params.n) if beams is None else ("best_of", beams["beam_width"])
    if len(given) * number > 4 * limit:
        raise ApiError(400, f"prompts times {name} are limited to {4 * limit}", param=name)
    prepared = []
    for index, one in enumerate(given):
        where = "prompt" if len(given) == 1 else f"prompt[{index}]"
        prompt = await service.preparation.prompt(exchange, one, where, priority=body.priority)
        service.preparation.check_fit(prompt, params, is_capped=body.max_tokens is not None, where=where)
        prepared.append(prompt)
    return prepared


async def _echoes(service: Service, exchange: Exchange, given: Sequence[Prompt]) -> list[str]:
    """The texts of the prompts."""
    tokenizer = await service.client.get_tokenizer()

    def decoded() -> list[str]:
        return [one if isinstance(one, str) else str(tokenizer.decode(one)) for one in given]

    return await service.preparation.in_pool(exchange, decoded, takes_long=True)
