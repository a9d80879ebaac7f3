"""Items of OpenAI's Responses API as messages of chat, whose rules then check them.

Knows which items there are; what of a message has an effect is known to `corellm.multimodal.chat`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corellm_server.errors import ApiError


def to_messages(items: Sequence[Any], begin: int = 0) -> tuple[list[dict[str, Any]], list[int]]:
    """The messages that items are, and the number of the item that each begins with.

    Calls, and the reasoning and text before them, are one message of the assistant, as the model wrote them.

    Args:
        items: as the client sent them.
        begin: the number of the first one.

    Raises:
        ApiError: an item is no message or part of one; names it.
    """
    messages: list[dict[str, Any]] = []
    numbers: list[int] = []
    reasoning = ""
    for number, item in enumerate(items, begin):
        message = _to_message(f"input[{number}]", item)
        if _is_a(item, "reasoning"):
            reasoning += message["reasoning_content"]
            continue
        before = messages[-1] if messages else {}
        calls = before.get("tool_calls") or []
        goes_on = _is_a(item, "function_call") and before.get("role") == "assistant" and isinstance(calls, list)
        if goes_on and not reasoning:
            messages[-1] = {**before, "tool_calls": [*calls, *message["tool_calls"]]}
            continue
        if reasoning and message.get("role") == "assistant":
            message = {**message, "reasoning_content": reasoning}
        reasoning = ""
        messages.append(message)
        numbers.append(number)
    return messages, numbers


def _is_a(item: Any, kind: str) -> bool:
    return isinstance(item, dict) and item.get("type") == kind


def _to_message(where: str, item: Any) -> dict[str, Any]:
    """The message that an item is; of reasoning only its text."""
    if not isinstance(item, dict):
        raise ApiError(400, f"{where}: an item is an object", param=where)
    kind = item.get("type")
    if kind in (None, "message"):
        return item
    if kind == "function_call":
        name, arguments = _text(where, item, "name"), _text(where, item, "arguments")
        function = {"name": name, "arguments": arguments}
        call = {"id": _text(where, item, "call_id"), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": _text(where, item, "call_id"), "content": item.get("output")}
    if kind == "reasoning":
        parts = item.get("content") or item.get("summary") or []
        texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
        return {"reasoning_content": "".join(text for text in texts if isinstance(text, str))}
    why = (
        "items are not kept by themselves; use previous_response_id"
        if kind == "item_reference"
        else "there is no such tool"
    )
    told = f"{where}: type {kind!r:.100} is not supported: {why}; send messages, function calls and their outputs"
    raise ApiError(400, told, param=where, code="unsupported_parameter")


def _text(where: str, item: dict[str, Any], name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or (name != "arguments" and not value):
        raise ApiError(400, f"{where}: a {item['type']} has {name}, a string; got {value!r:.100}", param=where)
    return value
