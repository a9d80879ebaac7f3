"""`GET /health`, `GET /ready`, `GET /metrics`: for probes and monitoring."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from corellm.errors import EngineDeadError, EngineLostError
from corellm.serving import Metric
from corellm_server.endpoints.replies import GET_ERRORS
from corellm_server.errors import unavailable
from corellm_server.models import Models
from corellm_server.service import Service
from corellm_server.tasks import all_results

_TEXT = {"text/plain": {"schema": {"type": "string"}}}


class Status(BaseModel):
    """The answer that everything is well; else there is an error."""

    status: str = "ok"


def status_routes(models: Models) -> APIRouter:
    """The endpoints, for one server."""
    router = APIRouter(responses=GET_ERRORS)
    first, ready_timeout = models.first, models.first.config.options.ready_timeout

    async def metrics_of(service: Service) -> Mapping[str, Sequence[Metric]]:
        with contextlib.suppress(TimeoutError, EngineDeadError, EngineLostError):
            if service.client.seconds_silent <= ready_timeout:
                async with asyncio.timeout(ready_timeout):
                    return await service.client.get_metrics_by_replica()
        return {}

    async def check_health() -> None:
        for service in models:
            await service.client.check_health()

    @router.get("/health")
    async def health() -> Status:
        """Whether the engines live."""
        await check_health()
        return Status()

    @router.get("/ready")
    async def ready() -> Status:
        """Whether requests are taken: an engine completes steps, and the server is not about to end."""
        first.intake.check_ending()
        await check_health()
        if models.seconds_silent > ready_timeout:
            raise unavailable("the engine completes no step")
        return Status()

    @router.get("/metrics", response_class=Response, responses={200: {"content": _TEXT}})
    async def metrics() -> Response:
        """Metrics in Prometheus's format; the server's own also where an engine is dead or hangs."""
        found = await all_results(map(metrics_of, models))
        labelled = [
            ({"model": service.names[0]} if len(models) > 1 else {}) | ({"replica": replica} if replica else {})
            for service, by_replica in zip(models, found, strict=True)
            for replica in by_replica
        ]
        values = (values for by_replica in found for values in by_replica.values())
        text = first.metrics.text(list(zip(labelled, values, strict=True)))
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    return router
