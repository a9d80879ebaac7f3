"""`GET /v1/models`, `GET /v1/models/{id}`, `GET /version`."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from corellm import __version__
from corellm_server.endpoints.replies import ERRORS, GET_ERRORS
from corellm_server.models import Models
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
    """All names of models."""

    object: Literal["list"]
    data: list[ServedModel]


class Version(BaseModel):
    """corellm's version."""

    version: str


def model_routes(models: Models) -> APIRouter:
    """The endpoints, for all models of a server."""
    router = APIRouter(responses=GET_ERRORS)

    def described(name: str, service: Service) -> ServedModel:
        return ServedModel(
            id=name, object="model", created=service.created, owned_by="corellm",
            max_model_len=service.client.max_model_len,
            **({"parent": service.names[0]} if name in service.adapters else {}),
        )  # fmt: skip

    @router.get("/v1/models", response_model_exclude_unset=True)
    async def list_models() -> ModelList:
        """All names of the models that are served, and of their LoRA adapters."""
        return ModelList(object="list", data=[described(name, models.find(name)) for name in models.names])

    @router.get("/v1/models/{model:path}", response_model_exclude_unset=True, responses={404: ERRORS[404]})
    async def retrieve_model(model: str) -> ServedModel:
        """One of them."""
        return described(model, models.find(model))

    @router.get("/version")
    async def version() -> Version:
        """The version of corellm."""
        return Version(version=__version__)

    return router
