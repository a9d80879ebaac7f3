"""`POST /v1/embeddings`, `/classify` and `/pooling`: what a model that pools makes of inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast, get_args

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from corellm_server.endpoints.replies import JsonBody, declared, json_response
from corellm_server.exchange import Exchange, exchange_of
from corellm_server.pooled import pool_inputs
from corellm_server.requests.pooling import ClassifyRequest, EmbeddingRequest, PoolingRequest, Task
from corellm_server.responses import pooling as responses
from corellm_server.responses.pooling import Pooled, data_of
from corellm_server.service import Service
from corellm_server.uses import check_tasks

_QUICK_VALUES = 1 << 16
"""Numbers that are written as JSON in some milliseconds."""


class InputUsage(BaseModel):
    """Numbers of tokens."""

    prompt_tokens: int
    total_tokens: int


class ListHead(BaseModel):
    """What lists of results begin with."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    usage: InputUsage


class Classes(BaseModel):
    """The classes of an input."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyResponse(ListHead):
    """The classes of all inputs."""

    data: list[Classes]


class Array(BaseModel):
    """The result of an input."""

    index: int
    object: Literal["pooling"]
    shape: list[int]
    data: list[float] | list[list[float]] | str


class PoolingResponse(ListHead):
    """The results of all inputs."""

    data: list[Array]


def pooling_routes(service: Service) -> APIRouter:
    """The endpoints, for one model."""
    router = APIRouter(route_class=JsonBody)

    @router.post("/v1/embeddings", **declared("EmbeddingResponse"))
    async def create_embeddings(body: EmbeddingRequest, request: Request) -> Response:
        """Embed inputs, or a conversation."""
        model = service.check_model(body.model, "embed")
        params = body.params("embed", dimensions=body.dimensions, use_activation=body.normalize)
        exchange = exchange_of(request.scope)
        outputs = await pool_inputs(service, exchange, body, params)
        return await _response(
            service, exchange, outputs, lambda: responses.embeddings(outputs, model, body.encoding_format)
        )

    @router.post("/classify", **declared(ClassifyResponse))
    @router.post("/v1/classify", **declared(ClassifyResponse))
    async def classify(body: ClassifyRequest, request: Request) -> Response:
        """Classify inputs, or a conversation."""
        model = service.check_model(body.model, "classify")
        params = body.params("classify", use_activation=body.use_activation)
        exchange = exchange_of(request.scope)
        outputs = await pool_inputs(service, exchange, body, params)
        labels = service.client.labels
        return await _response(service, exchange, outputs, lambda: responses.classes(outputs, model, labels))

    @router.post("/pooling", **declared(PoolingResponse))
    @router.post("/v1/pooling", **declared(PoolingResponse))
    async def pool(body: PoolingRequest, request: Request) -> Response:
        """Pool inputs, or a conversation, and return arrays."""
        model, has = service.check_model(body.model), service.client.tasks
        check_tasks(has, get_args(Task) if body.task is None else [body.task], param="task")
        task = body.task or cast(Task, "reward" if "reward" in has else has[0])
        params = body.params(task, dimensions=body.dimensions, use_activation=body.use_activation)
        exchange = exchange_of(request.scope)
        outputs = await pool_inputs(service, exchange, body, params)
        return await _response(
            service, exchange, outputs, lambda: responses.arrays(outputs, model, body.encoding_format)
        )

    return router


async def _response(
    service: Service, exchange: Exchange, outputs: Sequence[Pooled], make: Callable[[], dict[str, Any]]
) -> Response:
    """The response that is made of results; of many numbers beside the event loop."""
    if sum(data_of(output).size for output in outputs) < _QUICK_VALUES:
        return json_response(make())
    response = await service.preparation.in_pool(exchange, lambda: json_response(make()), takes_long=True)
    service.hold(exchange, len(response.body))
    return response
