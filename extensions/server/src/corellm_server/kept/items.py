"""The items that a response was made of, as `GET /v1/responses/ID/input_items` lists them.

Knows items as clients send them, and their ids; reads no media and no text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from corellm_server.errors import ApiError

_PREFIXES = {"function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def listed(items: Sequence[dict[str, Any]], response: str) -> list[dict[str, Any]]:
    """Items with an id each, messages with a type and with parts.

    Args:
        items: as clients sent them, or as they are in responses.
        response: its id, of which ids of items are made where clients gave none.
    """
    seen: set[str] = set()
    whole = []
    for number, item in enumerate(items):
        given = item.get("id")
        id = given if isinstance(given, str) and given and given not in seen else _made_id(item, f"{response}/{number}")
        whole.append(_listed(item, id))
        seen.add(id)
    return whole


def _made_id(item: dict[str, Any], place: str) -> str:
    return f"{_PREFIXES.get(item.get('type') or '', 'msg')}_{hashlib.sha256(place.encode()).hexdigest()[:32]}"


def _listed(item: dict[str, Any], id: str) -> dict[str, Any]:
    kind = item.get("type") or "message"
    whole = {"status": "completed", **item, "type": kind, "id": id}
    if kind == "message":
        content = item.get("content")
        parts = content if isinstance(content, list) else [] if content is None else [content]
        whole["content"] = [_part(part, item.get("role")) for part in parts]
    return whole


def _part(part: Any, role: Any) -> Any:
    """A part; a plain string as a part with text."""
    if not isinstance(part, str):
        return part
    is_output = role == "assistant"
    return (
        {"type": "output_text", "text": part, "annotations": []} if is_output else {"type": "input_text", "text": part}
    )


def page_of(items: Sequence[dict[str, Any]], *, limit: int, order: Literal["asc", "desc"], after: str | None) -> bytes:
    """Some of the items, as JSON.

    Args:
        items: all of them, the first one first.
        limit: most of them.
        order: `asc`, or `desc` for the last one first.
        after: the id of the item before the page.

    Raises:
        ApiError: 400, limit is wrong, or there is no such item.
    """
    if not 1 <= limit <= 100:
        raise ApiError(400, f"limit must be from 1 to 100, got {limit}", param="limit")
    ordered = list(items) if order == "asc" else list(reversed(items))
    if after is not None:
        ids = [item["id"] for item in ordered]
        if after not in ids:
            raise ApiError(400, f"after: there is no item {after!r:.100} in this response's input", param="after")
        ordered = ordered[ids.index(after) + 1 :]
    page = ordered[:limit]
    return msgspec.json.encode({
        "object": "list", "data": page, "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None, "has_more": len(ordered) > len(page),
    })  # fmt: skip
