"""`GET /v1/models`, `GET /v1/models/{id}`, `GET /version`."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from corellm import __version__
from corellm_server.endpoints.replies import ERRORS, GET_ERRORS
from corellm_server.service import Service


class ServedModel(BaseModel):
    """OpenAI's model, with its length."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    parent: str | None = None
    """Model that a LoRA adapter is for; None for a model itself."""


class ModelList(BaseModel):
    """All names of the model."""

    object: Literal["list"]
    data: list[ServedModel]


class Version(BaseModel):
    """corellm's version."""

    version: str


def model_routes(service: Service) -> APIRouter:
    """The endpoints, for one model."""
    router = APIRouter(responses=GET_ERRORS)

    def described(name: str) -> ServedModel:
        return ServedModel(
            id=name, object="model", created=service.created, owned_by="corellm",
            max_model_len=service.client.max_model_len,
            **({"parent": service.names[0]} if name in service.adapters else {}),
        )  # fmt: skip

    @router.get("/v1/models", response_model_exclude_unset=True)
    async def list_models() -> ModelList:
        """All names of the model that is served, and of its LoRA adapters."""
        return ModelList(object="list", data=[described(name) for name in (*service.names, *service.adapters)])

    @router.get("/v1/models/{model:path}", response_model_exclude_unset=True, responses={404: ERRORS[404]})
    async def retrieve_model(model: str) -> ServedModel:
        """One of them."""
        return described(service.check_model(model))

    @router.get("/version")
    async def version() -> Version:
        """The version of corellm."""
        return Version(version=__version__)

    return router
