"""`POST /sleep`, `POST /wake_up`, `GET /is_sleeping`, `POST /update_weights`: for those who train beside serving.

There for whom the operator's options allow it; none has a body, so that a full queue keeps none out.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel

from corellm.errors import CheckpointError, ConfigError, InvalidParameterError, PluginError
from corellm_server.directories import directory_below
from corellm_server.endpoints.replies import GET_ERRORS, ID_ERRORS
from corellm_server.endpoints.status import Status
from corellm_server.errors import ApiError
from corellm_server.service import Service

logger = logging.getLogger(__name__)


class Sleeping(BaseModel):
    """Whether the model sleeps, or a part of it."""

    is_sleeping: bool


def sleep_routes(service: Service) -> APIRouter:
    """The endpoints that a server's options allow.

    Raises:
        AbsentMethodError: there are some, and what they call is not installed.
    """
    router, options = APIRouter(), service.config.options
    if options.enable_sleep_mode:
        _add_sleep(router, service)
    if options.allowed_weights_path is not None:
        _add_updates(router, service, Path(options.allowed_weights_path).resolve())
    return router


def _takes(*names: str) -> Any:
    """What refuses other arguments of a URL, and a body: `{"level": 2}` in one would be no level."""

    async def check(request: Request) -> None:
        for name in request.query_params:
            if name not in names:
                told = f"{name!r:.100} is no argument of this URL; it takes {', '.join(names)}"
                raise ApiError(400, told, param=name[:100], code="unknown_parameter")
        headers = request.headers
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            raise ApiError(400, f"this URL takes no body; write {', '.join(names)} into it, as ?{names[0]}=...")

    return Depends(check)


def _add_sleep(router: APIRouter, service: Service) -> None:
    _ = service.client.sleep

    @router.post("/sleep", responses=ID_ERRORS, dependencies=[_takes("level")])
    async def sleep(level: int = 1) -> Status:
        """Give back the memory of the KV cache, and at level 2 that of weights; requests wait."""
        await service.client.sleep(level)
        service.intake.sleeps = True
        logger.info("the model sleeps, at level %d", level)
        return Status()

    @router.post("/wake_up", responses=ID_ERRORS, dependencies=[_takes("tags")])
    async def wake_up(tags: Annotated[list[str] | None, Query()] = None) -> Status:
        """Bring both back, or one of `weights` and `kv_cache`; requests go on once both are there."""
        wanted = None if tags is None else [tag for given in tags for tag in given.split(",")]
        try:
            await service.client.wake_up(wanted)
        except (CheckpointError, ConfigError, PluginError) as error:
            raise ApiError(500, f"the model sleeps on, its weights cannot be read: {error}") from error
        service.intake.sleeps = await service.client.is_sleeping()
        logger.info("the model woke: %s", ", ".join(wanted) if wanted else "all of it")
        return Status()

    @router.get("/is_sleeping", responses=GET_ERRORS)
    async def is_sleeping() -> Sleeping:
        """Whether the model sleeps."""
        return Sleeping(is_sleeping=await service.client.is_sleeping())


def _add_updates(router: APIRouter, service: Service, root: Path) -> None:
    _ = service.client.update_weights

    @router.post("/update_weights", responses=ID_ERRORS, dependencies=[_takes("directory")])
    async def update_weights(directory: str) -> Status:
        """Give the model the weights of a directory below that of the operator; requests go on with them."""
        path = await asyncio.to_thread(directory_below, root, directory)
        if path is None:
            message = f"there is no directory {directory!r:.200} below --allowed-weights-path"
            raise ApiError(400, message, param="directory")
        try:
            await service.client.update_weights(path)
        except (CheckpointError, InvalidParameterError) as error:
            raise ApiError(400, str(error), param="directory") from error
        logger.info("the model has the weights of %s", path)
        return Status()
