"""Runs the inputs of one request through a model that pools: all are prepared and checked, then all run together.

Knows how many there may be and how large their results; knows no endpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from corellm.engine.input_processor import ProcessedPrompt
from corellm.pooling_params import PoolingParams
from corellm.server.errors import ApiError
from corellm.server.exchange import Exchange
from corellm.server.requests.completions import each_prompt
from corellm.server.requests.pooling import InputsRequest
from corellm.server.responses.pooling import Pooled, data_of
from corellm.server.service import Service
from corellm.server.tasks import all_results

_INPUT_BYTES = 1 << 13
"""Memory of an input while it is prepared and run, beside its text and items."""
_AT_ONCE = 256
"""Inputs of one request that are in the engine at once: more than it runs, so that it is busy, and not so many that the
requests of others wait for all of them."""


async def pool_inputs(service: Service, exchange: Exchange, body: InputsRequest, params: PoolingParams) -> list[Pooled]:
    """The results of a request's inputs, in their order.

    Raises:
        ApiError, CorellmError: what is wrong.
    """
    if (body.input is None) == (not body.messages):
        raise ApiError(400, "give either input or messages", param="input")
    preparation, salt = service.preparation, exchange.salt
    if body.input is None:
        prompt = await preparation.conversation(body, salt=salt, priority=body.priority)
        return await pool_all(service, exchange, [("messages", prompt)], params)
    given = each_prompt(body.input)
    count_inputs(service, exchange, "input", len(given))
    names = ["input"] if len(given) == 1 else [f"input[{index}]" for index in range(len(given))]
    prompts = await all_results(
        preparation.prompt(one, name, salt=salt, priority=body.priority) for one, name in zip(given, names, strict=True)
    )
    return await pool_all(service, exchange, list(zip(names, prompts, strict=True)), params)


def count_inputs(service: Service, exchange: Exchange, field: str, number: int) -> None:
    """Count the inputs of a request, before any of them is prepared.

    Raises:
        ApiError: 400, there is none, or too many; 503, too many are in the server.
    """
    limit = service.config.limits.max_inputs
    if not number:
        raise ApiError(400, f"{field} must have at least one entry", param=field)
    if number > limit:
        raise ApiError(400, f"{field} has {number} entries, {limit} are allowed", param=field)
    service.intake.hold(number * _INPUT_BYTES)
    exchange.num_bytes += number * _INPUT_BYTES


async def pool_all(
    service: Service, exchange: Exchange, prompts: Sequence[tuple[str, ProcessedPrompt]], params: PoolingParams
) -> list[Pooled]:
    """The results of prompts, each with its place in the request; the first failure aborts the others.

    Raises:
        ApiError, CorellmError: a prompt is too long, the results are too large, or one failed.
    """
    for where, prompt in prompts:
        service.preparation.check_length(prompt, params, where)
    limit = service.config.limits.max_result_values
    num_values, room = 0, asyncio.Semaphore(_AT_ONCE)

    async def run(prompt: ProcessedPrompt) -> Pooled:
        nonlocal num_values
        async with room:
            output = await service.pool(exchange, prompt, params)
        num_values += data_of(output).size
        if num_values > limit:
            raise ApiError(400, f"the results have more than the {limit} numbers allowed; send fewer or shorter inputs")
        return output

    return await all_results(run(prompt) for _, prompt in prompts)
