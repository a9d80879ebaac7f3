"""Items of OpenAI's Responses API as messages of chat, whose rules then check them.

Knows which items and parts there are, and what of them a prompt does not need; opens no media.
"""

from __future__ import annotations

from typing import Any

from corellm.server.errors import ApiError

_OF_ITEMS = frozenset({"type", "id", "status", "phase"})
"""What items of earlier responses have, and messages do not."""
_OF_PARTS = frozenset({"detail", "annotations", "logprobs", "prompt_cache_breakpoint"})
"""What parts may have without an effect."""
_CHATS = {"input_text": "text", "output_text": "text", "input_image": "image_url"}
"""A part's type to chat's."""
_FILE = (
    "input_file needs file_data, a data: URL of an image, video or audio (data:audio/wav;base64,...); text goes into "
    "input_text, other URLs go into image_url, video_url or audio_url"
)


def to_message(where: str, item: Any) -> dict[str, Any]:
    """The message of an item; what chat's rules refuse is left to them.

    Args:
        where: its place in the request.
        item: as the client sent it.

    Raises:
        ApiError: no message can have it; names the item or part.
    """
    if not isinstance(item, dict):
        raise ApiError(400, f"{where}: an item is an object", param=where)
    kind = item.get("type")
    if kind not in (None, "message"):
        why = "there are no stored items" if kind == "item_reference" else "the model takes messages only"
        told = f"{where}: type {kind!r:.100} is not supported: {why}; send a message, or leave it out"
        raise ApiError(400, told, param=where, code="unsupported_parameter")
    message = {key: value for key, value in item.items() if key not in _OF_ITEMS}
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = [_part(f"{where}.content[{j}]", part) for j, part in enumerate(content)]
    return message


def _part(where: str, part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in (*_CHATS, "input_file"):
        return part
    kept = {key: value for key, value in part.items() if key not in _OF_PARTS}
    if kept.pop("file_id", None) is not None:
        raise ApiError(400, f"{where}: there are no stored files; send the content as a data: URL", param=where)
    if kind != "input_file":
        return {**kept, "type": _CHATS[kind]}
    data, _ = kept.pop("file_data", None), kept.pop("filename", None)
    scheme, _, modality = data[:32].partition("/")[0].lower().partition(":") if isinstance(data, str) else ("", "", "")
    if scheme != "data" or modality not in ("image", "video", "audio"):
        raise ApiError(400, f"{where}: {_FILE}", param=where)
    return {**kept, "type": modality, modality: data}
