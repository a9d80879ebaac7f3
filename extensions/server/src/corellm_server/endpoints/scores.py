"""`POST /score` and `/rerank`: how well documents fit a query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from corellm_server.endpoints.pooling import InputUsage, ListHead
from corellm_server.endpoints.replies import JsonBody, declared, json_response
from corellm_server.errors import ApiError
from corellm_server.exchange import exchange_of
from corellm_server.requests.pooling import PairsFields, RerankRequest, ScoreRequest, Side
from corellm_server.responses import pooling as responses
from corellm_server.service import Service

Sides = tuple[str, Sequence[Side]]
"""The field's name, and queries or documents."""


class Score(BaseModel):
    """The score of a pair."""

    index: int
    object: Literal["score"]
    score: float


class ScoreResponse(ListHead):
    """The scores of all pairs."""

    data: list[Score]


class Rank(BaseModel):
    """A document and its score."""

    index: int
    relevance_score: float
    document: dict[str, Any] | None = None


class RerankResponse(BaseModel):
    """The best documents first."""

    id: str
    model: str
    results: list[Rank]
    usage: InputUsage


def score_routes(service: Service) -> APIRouter:
    """The endpoints, for one model."""
    router = APIRouter(route_class=JsonBody)

    @router.post("/score", **declared(ScoreResponse))
    @router.post("/v1/score", **declared(ScoreResponse))
    async def score(body: ScoreRequest, request: Request) -> Response:
        """Score queries with documents: one with all, or each with its own."""
        model = service.check_model(body.model, "score", "embed", "token_embed")
        found, outputs = await _scored(service, request, body, *body.sides)
        return json_response(responses.scores(found, outputs, model))

    @router.post("/rerank", **declared(RerankResponse))
    @router.post("/v1/rerank", **declared(RerankResponse))
    @router.post("/v2/rerank", **declared(RerankResponse))
    async def rerank(body: RerankRequest, request: Request) -> Response:
        """Sort documents by how well they fit a query."""
        model = service.check_model(body.model, "score", "embed", "token_embed")
        if body.top_n is not None and body.top_n < 1:
            raise ApiError(400, "top_n must be at least 1", param="top_n")
        found, outputs = await _scored(service, request, body, ("query", [body.query]), ("documents", body.documents))
        documents = body.documents if body.return_documents else None
        return json_response(responses.ranks(found, outputs, model, documents, body.top_n))

    return router


async def _scored(
    service: Service, request: Request, body: PairsFields, queries: Sides, documents: Sides
) -> tuple[list[float], list[responses.Pooled]]:
    """The scores and outputs of `Scorer.score`, which needs corellm-pooling: a model that scores was loaded by it."""
    from corellm_server.scoring import Scorer

    return await Scorer(service, exchange_of(request.scope), body).score(queries, documents)
