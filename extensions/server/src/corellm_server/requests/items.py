"""Items of OpenAI's Responses API as messages of chat, whose rules then check them.

Knows which items there are; what of a message has an effect is known to `corellm.multimodal.chat`.
"""

from __future__ import annotations

from typing import Any

from corellm_server.errors import ApiError


def to_message(where: str, item: Any) -> dict[str, Any]:
    """The message that an item is.

    Args:
        where: its place in the request.
        item: as the client sent it.

    Raises:
        ApiError: it is none; names the item.
    """
    if not isinstance(item, dict):
        raise ApiError(400, f"{where}: an item is an object", param=where)
    kind = item.get("type")
    if kind not in (None, "message"):
        why = "there are no stored items" if kind == "item_reference" else "the model takes messages only"
        told = f"{where}: type {kind!r:.100} is not supported: {why}; send a message, or leave it out"
        raise ApiError(400, told, param=where, code="unsupported_parameter")
    return item
