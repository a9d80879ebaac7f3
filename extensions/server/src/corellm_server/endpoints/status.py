"""`GET /health`, `GET /ready`, `GET /metrics`: for probes and monitoring."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from corellm.errors import EngineDeadError
from corellm.serving import Metric
from corellm_server.endpoints.replies import GET_ERRORS
from corellm_server.errors import unavailable
from corellm_server.service import Service

_TEXT = {"text/plain": {"schema": {"type": "string"}}}


class Status(BaseModel):
    """The answer that everything is well; else there is an error."""

    status: str = "ok"


def status_routes(service: Service) -> APIRouter:
    """The endpoints, for one server."""
    router = APIRouter(responses=GET_ERRORS)

    def is_silent() -> bool:
        return service.client.seconds_silent > service.config.options.ready_timeout

    @router.get("/health")
    async def health() -> Status:
        """Whether the engine lives."""
        await service.client.check_health()
        return Status()

    @router.get("/ready")
    async def ready() -> Status:
        """Whether requests are taken: the engine completes steps, and the server is not about to end."""
        service.intake.check_ending()
        await service.client.check_health()
        if is_silent():
            raise unavailable("the engine completes no step")
        return Status()

    @router.get("/metrics", response_class=Response, responses={200: {"content": _TEXT}})
    async def metrics() -> Response:
        """Metrics in Prometheus's format; the server's own also where the engine is dead or hangs."""
        engine_metrics: Mapping[str, Sequence[Metric]] = {}
        with contextlib.suppress(TimeoutError, EngineDeadError):
            if not is_silent():
                async with asyncio.timeout(service.config.options.ready_timeout):
                    engine_metrics = await service.client.get_metrics_by_replica()
        return Response(service.metrics.text(engine_metrics), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return router
