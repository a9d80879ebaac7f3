"""Runs the inputs of one request through a model that pools: all are prepared and checked, then all run together.

Knows how many there may be and how large their results; knows no endpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from corellm.serving import ProcessedPrompt
from corellm_server.errors import ApiError
from corellm_server.exchange import Exchange
from corellm_server.requests.completions import Prompt, Prompts, each_prompt
from corellm_server.requests.pooling import InputsRequest
from corellm_server.responses.pooling import Pooled, data_of
from corellm_server.service import Service
from corellm_server.tasks import all_results

if TYPE_CHECKING:
    from corellm_pooling.params import PoolingParams

_INPUT_BYTES = 1 << 13
"""Memory of an input while it is prepared and run, beside its text and items."""
_PREPARED_AT_ONCE = 32
"""Inputs of one request that are prepared at once: the inputs of others need not wait for all of them, and little of
what is cut off prompts that are too long is in memory."""
_AT_ONCE = 256
"""Inputs of one request that are in the engine at once: more than it runs, so that it is busy, and not so many that the
requests of others wait for all of them."""

Prepare = Callable[[], Coroutine[Any, Any, ProcessedPrompt]]


async def pool_inputs(service: Service, exchange: Exchange, body: InputsRequest, params: PoolingParams) -> list[Pooled]:
    """The results of a request's inputs, in their order.

    Raises:
        ApiError, CorellmError: what is wrong.
    """
    if (body.input is None) == (not body.messages):
        raise ApiError(400, "give either input or messages", param="input")
    preparation = service.preparation
    if body.prompt_name is not None and not _is_text(body.input):
        raise ApiError(400, "prompt_name puts a text before each input, which must be text then", param="prompt_name")
    if body.input is None:
        prepare: Prepare = partial(preparation.conversation, exchange, body, priority=body.priority)
        return await pool_all(service, exchange, [("messages", prepare)], params)
    given: list[Prompt | dict[str, Any]] = list(each_prompt(body.input))
    count_inputs(service, exchange, "input", len(given))
    if body.prompt_name is not None:
        given = [{"prompt": text, "prompt_name": body.prompt_name} for text in given]
    names = ["input"] if len(given) == 1 else [f"input[{index}]" for index in range(len(given))]
    inputs = [
        (name, partial(preparation.prompt, exchange, one, name, priority=body.priority))
        for one, name in zip(given, names, strict=True)
    ]
    return await pool_all(service, exchange, inputs, params)


def _is_text(given: Prompts | None) -> bool:
    return given is not None and all(isinstance(one, str) for one in each_prompt(given))


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
    service.hold(exchange, number * _INPUT_BYTES)


async def pool_all(
    service: Service, exchange: Exchange, inputs: Sequence[tuple[str, Prepare]], params: PoolingParams
) -> list[Pooled]:
    """The results of inputs; the first failure aborts the others.

    Args:
        service: the model.
        exchange: the request.
        inputs: the place of each in the request, and what makes its prompt.
        params: of all.

    Raises:
        ApiError, CorellmError: an input is wrong or too long, the results are too large, or one failed.
    """
    limit = service.config.limits.max_result_values
    num_values, preparing, room = 0, asyncio.Semaphore(_PREPARED_AT_ONCE), asyncio.Semaphore(_AT_ONCE)

    async def prepared(where: str, prepare: Prepare) -> ProcessedPrompt:
        async with preparing:
            return service.preparation.fitted(await prepare(), params, where)

    async def run(prompt: ProcessedPrompt) -> Pooled:
        nonlocal num_values
        async with room:
            output = await service.pool(exchange, prompt, params)
        service.hold(exchange, data_of(output).nbytes)
        num_values += data_of(output).size
        if num_values > limit:
            raise ApiError(400, f"the results have more than the {limit} numbers allowed; send fewer or shorter inputs")
        return output

    prompts = await all_results(prepared(where, prepare) for where, prepare in inputs)
    return await all_results(map(run, prompts))
