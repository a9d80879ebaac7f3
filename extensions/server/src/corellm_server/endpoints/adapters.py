"""`POST /v1/load_lora_adapter`, `POST /v1/unload_lora_adapter`: there with `--allow-runtime-lora-updating` alone."""

from __future__ import annotations

import logging
from functools import partial

from fastapi import APIRouter, Request
from pydantic import BaseModel

from corellm_server.endpoints.replies import ERRORS, JsonBody
from corellm_server.exchange import exchange_of
from corellm_server.requests.adapters import LoadAdapterRequest, UnloadAdapterRequest
from corellm_server.service import Service

logger = logging.getLogger(__name__)


class Adapters(BaseModel):
    """The adapters that are served now."""

    lora_adapters: list[str]


def adapter_routes(service: Service) -> APIRouter:
    """The endpoints, for one model."""
    router = APIRouter(route_class=JsonBody, responses=ERRORS)
    if service.config.options.allow_runtime_lora_updating is None:
        return router

    @router.post("/v1/load_lora_adapter")
    async def load(body: LoadAdapterRequest, request: Request) -> Adapters:
        """Serve an adapter under a name of its own, after checking that the model can have it."""
        add = partial(service.adapters.add, body.lora_name, body.lora_path, replaces=body.load_inplace)
        await service.preparation.in_pool(exchange_of(request.scope), add, takes_long=True)
        logger.info("the LoRA adapter %r is served from %r", body.lora_name, body.lora_path)
        return Adapters(lora_adapters=[*service.adapters])

    @router.post("/v1/unload_lora_adapter")
    async def unload(body: UnloadAdapterRequest) -> Adapters:
        """Serve an adapter no more; its requests that run end as they began."""
        service.adapters.remove(body.lora_name)
        logger.info("the LoRA adapter %r is served no more", body.lora_name)
        return Adapters(lora_adapters=[*service.adapters])

    return router
