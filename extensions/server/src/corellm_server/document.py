"""The OpenAPI document: FastAPI's, and what FastAPI cannot know of the gate, of streams and of the model.

Knows the form of such documents; knows no endpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from corellm_server.gate import OPEN_ROUTES

_REQUEST_ID = {"description": "The client's own, or a new one.", "required": True, "schema": {"type": "string"}}
_RETRY_AFTER = {"description": "Seconds, if asking again may help.", "schema": {"type": "string"}}
_KEYS = {
    "api_key": {"type": "http", "scheme": "bearer"},
    "x_api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
"""Where a key may be."""


def complete(document: dict[str, Any], names: Sequence[str], *, has_keys: bool) -> None:
    """Complete a document in place.

    Args:
        document: as FastAPI makes it.
        names: of the model.
        has_keys: whether clients need one.
    """
    for path, operation in _operations(document):
        responses, is_open = operation["responses"], path in OPEN_ROUTES
        responses.pop("422", None)  # FastAPI's own: the server says 400
        if is_open or not has_keys:
            responses.pop("401", None)
        if is_open:
            operation["security"] = []
        for status, response in responses.items():
            response["headers"] = {
                "X-Request-Id": _REQUEST_ID,
                **({"Retry-After": _RETRY_AFTER} if status == "503" else {}),
            }
        for place in _models(document, operation):
            place["enum"] = [*names, *([None] if "anyOf" in place else [])]
    if has_keys:
        document["components"]["securitySchemes"] = _KEYS
        document["security"] = [{name: []} for name in _KEYS]


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
