"""`GET /health`, `GET /ready`, `GET /metrics`: for probes and monitoring."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from corellm.errors import EngineDeadError
from corellm.server.endpoints.replies import ERRORS
from corellm.server.errors import unavailable
from corellm.server.service import Service


class Status(BaseModel):
    """That everything is well; else there is an error."""

    status: str = "ok"


def status_routes(service: Service) -> APIRouter:
    """The endpoints, for one server."""
    router = APIRouter(responses=ERRORS)

    @router.get("/health")
    async def health() -> Status:
        """Whether the engine lives."""
        await service.client.check_health()
        return Status()

    @router.get("/ready")
    async def ready() -> Status:
        """Whether requests are taken: the engine completes steps, and the server is not about to stop."""
        if service.intake.is_draining:
            raise unavailable("the server is shutting down")
        await service.client.check_health()
        try:
            async with asyncio.timeout(service.config.options.ready_timeout):
                await service.client.get_metrics()  # given between two steps
        except TimeoutError:
            raise unavailable("the engine completes no step") from None
        return Status()

    @router.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Metrics in Prometheus's format; the server's own also where the engine is dead or hangs."""
        try:
            async with asyncio.timeout(service.config.options.ready_timeout):
                engine_metrics = await service.client.get_metrics()
        except (TimeoutError, EngineDeadError):
            engine_metrics = []
        return Response(service.metrics.text(engine_metrics), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return router
