"""The OpenAPI document: FastAPI's, and what FastAPI cannot know of the gate, of OpenAI's types and of the model.

It is made when it is first asked for. Knows the form of such documents; knows no endpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from fastapi import FastAPI, Request
from pydantic.json_schema import models_json_schema
from starlette.responses import JSONResponse, Response

from corellm_server.endpoints.replies import OPENAI_TYPE
from corellm_server.gate import OPEN_ROUTES
from corellm_server.models import Models

_REQUEST_ID = {"description": "The client's own, or a new one.", "required": True, "schema": {"type": "string"}}
_RETRY_AFTER = {"description": "Seconds, if asking again may help.", "schema": {"type": "string"}}
_KEYS = {
    "api_key": {"type": "http", "scheme": "bearer"},
    "x_api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
"""Where a key may be."""


def add_document_route(app: FastAPI, models: Models) -> None:
    """Add `GET /openapi.json` to an application."""
    has_keys, lock = bool(models.first.config.options.api_key), asyncio.Lock()

    @lru_cache(1)  # names of adapters come and go
    def made(*names: str) -> dict[str, Any]:
        document = app.openapi()
        _complete(document, names, has_keys=has_keys)
        return document

    async def openapi(request: Request) -> Response:
        async with lock:
            document = await asyncio.to_thread(made, *models.names)
        root = request.scope["root_path"]
        return JSONResponse({**document, "servers": [{"url": root}]} if root else document)

    app.add_route("/openapi.json", openapi, include_in_schema=False)


def _complete(document: dict[str, Any], names: Sequence[str], *, has_keys: bool) -> None:
    """Complete a document in place.

    Args:
        document: as FastAPI makes it.
        names: of models and adapters.
        has_keys: whether clients need one.
    """
    types = _openai_types(document)
    for path, operation in _operations(document):
        responses, is_open = operation["responses"], path in OPEN_ROUTES
        responses.pop("422", None)  # FastAPI's own: the server says 400
        if is_open or not has_keys:
            responses.pop("401", None)
        if is_open:
            operation["security"] = []
        for status, response in responses.items():
            if OPENAI_TYPE in response:
                response["content"]["application/json"] = {"schema": types[response.pop(OPENAI_TYPE)]}
            response["headers"] = {
                "X-Request-Id": _REQUEST_ID,
                **({"Retry-After": _RETRY_AFTER} if status == "503" else {}),
            }
        for place in _models(document, operation):
            place["enum"] = [*names, *([None] if "anyOf" in place else [])]
    if has_keys:
        document["components"]["securitySchemes"] = _KEYS
        document["security"] = [{name: []} for name in _KEYS]


def _openai_types(document: dict[str, Any]) -> Mapping[str, Any]:
    """Put the schemas of OpenAI's types among a document's; return references to them, by the types' names."""
    from corellm_server.openai_types import TYPES  # takes half a second

    references, definitions = models_json_schema(
        [(kind, "serialization") for kind in TYPES], ref_template="#/components/schemas/{model}"
    )
    schemas = document["components"]["schemas"]
    for name, schema in definitions["$defs"].items():
        if schemas.setdefault(name, schema) != schema:
            raise ValueError(f"two different types of the OpenAPI document are called {name}")
    return {kind.__name__: reference for (kind, _), reference in references.items()}


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation


def _models(document: dict[str, Any], operation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas of the places where a request has a model's name."""
    for parameter in operation.get("parameters", ()):
        if parameter["name"] == "model":
            yield parameter["schema"]
    content = operation.get("requestBody", {}).get("content", {})
    for kind in content.values():
        schema = kind["schema"]
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        if model := schema["properties"].get("model"):
            yield model
