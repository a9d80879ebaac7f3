"""A client's messages, checked: which parts they have, in which order, and what their media are named by.

Knows the parts of OpenAI's API and the plain ones (`{"image": ...}`); opens and fetches nothing. Text is text: it is
never searched for URLs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corellm.errors import MultiModalError
from corellm.multimodal.chat.messages import ROLES
from corellm.server.errors import ApiError, unavailable
from corellm.server.limits import RequestLimits

_TYPES = {
    "text": "text", "refusal": "text",
    "image": "image", "image_url": "image",
    "video": "video", "video_url": "video",
    "audio": "audio", "audio_url": "audio", "input_audio": "audio",
    "image_embeds": "image", "video_embeds": "video", "audio_embeds": "audio",
}  # fmt: skip
"""A part's type to its modality."""
_MESSAGE_KEYS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"})
_DROPPED_KEYS = frozenset({"refusal", "annotations"})
"""What clients send back of a completion, and no template takes."""
_FORMAT = re.compile(r"[a-z0-9]{1,8}")
_MAX_UUID = 256


@dataclass
class Source:
    """Media of a part, by what the client named them."""

    where: str
    """`messages[i].content[j]`."""
    modality: str
    part: dict[str, Any]
    """The part as the engine gets it; its media are under its modality's name."""
    are_embeddings: bool = False
    """Whether the name is the media: precomputed embeddings, as base64."""

    @property
    def name(self) -> str | None:
        """A `data:` URL, another URL or a path; None where the part has a uuid alone."""
        name: str | None = self.part[self.modality]
        return name


@dataclass
class CheckedMessages:
    """Messages in the engine's form, and their media in order."""

    messages: list[dict[str, Any]]
    sources: list[Source]
    field: str = "messages"
    """Of the request, that has them."""

    @property
    def num_characters(self) -> int:
        """Characters of text, media not counted."""
        parts = (part for message in self.messages for part in message["content"])
        return sum(len(part["text"]) for part in parts if part["type"] == "text")

    def located(self, error: MultiModalError) -> ApiError:
        """The error for an item, with the part that it came from."""
        own = [source for source in self.sources if source.modality == error.modality]
        if error.status == 503:
            return unavailable(str(error))
        if error.item is None or not 0 <= error.item < len(own):
            return ApiError(error.status, str(error), param=self.field)
        return ApiError(error.status, f"{own[error.item].where}: {error}", param=own[error.item].where)


def messages_schema() -> dict[str, Any]:
    """The JSON schema of what `check_messages` takes, but for which keys go with which type of part."""
    text, media = {"type": ["string", "null"]}, {"type": ["string", "object", "null"]}
    part = {
        "type": {"enum": [*_TYPES, None]},
        **{kind: text if modality == "text" else media for kind, modality in _TYPES.items()},
        "uuid": {"type": ["string", "null"], "minLength": 1, "maxLength": _MAX_UUID},
    }
    parts = {"anyOf": [{"type": "string"}, _object(part)]}
    message = {
        **{key: {} for key in sorted(_MESSAGE_KEYS | _DROPPED_KEYS)},
        "role": {"enum": [*ROLES]},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": parts}, {"type": "null"}]},
    }
    return {"type": "array", "minItems": 1, "items": {**_object(message), "required": ["role"]}}


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    """An object whose further properties may be null only."""
    return {"type": "object", "properties": properties, "additionalProperties": {"type": "null"}}


def check_messages(
    messages: Sequence[Mapping[str, Any]],
    limits: RequestLimits,
    item_limits: Mapping[str, int | None],
    *,
    field: str,
    skip: int,
) -> CheckedMessages:
    """The messages, with every part in one form.

    Args:
        messages: as a client sent them.
        limits: of messages, parts and items.
        item_limits: of the model, by modality; None for any number.
        field: of the request, that has the messages.
        skip: how many messages come before the field's first.

    Raises:
        ApiError: a message or part is malformed, or there are too many.
    """
    if not messages:
        raise ApiError(400, f"{field} must have at least one message", param=field)
    if len(messages) > limits.max_messages:
        raise ApiError(400, f"{field} has {len(messages)}, {limits.max_messages} are allowed", param=field)
    parts = sum(len(m["content"]) if isinstance(m.get("content"), list) else 1 for m in messages)
    if parts > limits.max_parts:
        raise ApiError(400, f"{field} has {parts} parts, {limits.max_parts} are allowed", param=field)
    checked = CheckedMessages([], [], field)
    for i, message in enumerate(messages, -skip):
        checked.messages.append(_message(f"{field}[{i}]", message, checked.sources))
    check_counts(checked.sources, limits.max_items, item_limits)
    return checked


def check_counts(sources: Sequence[Source], max_items: int, item_limits: Mapping[str, int | None]) -> None:
    """Check the numbers of items against the server's limit and the model's.

    Raises:
        ApiError: an item that the model does not take, or one too many.
    """
    counts: dict[str, int] = {}
    for total, source in enumerate(sources, 1):
        if source.modality not in item_limits:
            takes = ", ".join(item_limits) or "text alone"
            raise _wrong(source.where, f"this model takes no {source.modality}; it takes {takes}")
        count = counts[source.modality] = counts.get(source.modality, 0) + 1
        limit = item_limits[source.modality]
        if limit is not None and count > limit:
            raise _wrong(source.where, f"this is item {count} of {source.modality}, and {limit} are allowed")
        if total > max_items:
            raise _wrong(source.where, f"this is item {total} of the conversation, and {max_items} are allowed")


def _message(where: str, message: Mapping[str, Any], sources: list[Source]) -> dict[str, Any]:
    kept = {key: value for key, value in message.items() if value is not None and key not in _DROPPED_KEYS}
    for key in kept.keys() - _MESSAGE_KEYS:
        raise _wrong(where, f"a message has no {key!r:.100}")
    if kept.get("role") not in ROLES:
        raise _wrong(f"{where}.role", f"must be one of {', '.join(ROLES)}")
    content = kept.get("content", [] if kept["role"] == "assistant" else None)
    if isinstance(content, str):
        content = [content]
    if not isinstance(content, list):
        raise _wrong(f"{where}.content", "must be text or a list of parts")
    kept["content"] = [_part(f"{where}.content[{j}]", part, sources) for j, part in enumerate(content)]
    return kept


def _part(where: str, given: Any, sources: list[Source]) -> dict[str, Any]:
    if isinstance(given, str):
        return {"type": "text", "text": given}
    if not isinstance(given, dict):
        raise _wrong(where, "a part is an object with a type, or text")
    part = {key: value for key, value in given.items() if value is not None}
    plain = [key for key in ("text", "image", "video", "audio") if key in given]
    kind = part.pop("type", plain[0] if len(plain) == 1 else None)
    if not isinstance(kind, str) or kind not in _TYPES:
        raise _wrong(where, f"type {kind!r:.100} is not known; known: {', '.join(_TYPES)}")
    modality, uuid = _TYPES[kind], part.pop("uuid", None)
    media = part.pop(kind, None)
    if part:
        raise _wrong(where, f"a part of type {kind} has no {next(iter(part))!r:.100}")
    if modality == "text":
        if not isinstance(media, str) or uuid is not None:
            raise _wrong(where, f"a part of type {kind} has a string under {kind!r}, and nothing else")
        return {"type": "text", "text": media}
    if uuid is not None and not (isinstance(uuid, str) and 0 < len(uuid) <= _MAX_UUID):
        raise _wrong(where, f"uuid must be a string of 1 to {_MAX_UUID} characters")
    name = _name(where, kind, media)
    are_embeddings = kind.endswith("_embeds")
    if name is None and (uuid is None or are_embeddings):
        raise _wrong(where, f"a part of type {kind} needs {kind!r}")
    engine_part = {"type": modality, modality: name, **({} if uuid is None else {"uuid": uuid})}
    sources.append(Source(where, modality, engine_part, are_embeddings))
    return engine_part


def _name(where: str, kind: str, media: Any) -> str | None:
    """The URL or path of a part's media."""
    if kind == "input_audio" and isinstance(media, dict):
        data, form = media.get("data"), media.get("format")
        if media.keys() - {"data", "format"} or not isinstance(data, str) or not isinstance(form, str):
            raise _wrong(where, "input_audio is {data, format}")
        if not _FORMAT.fullmatch(form):
            raise _wrong(where, "the format of input_audio is a word like wav or mp3")
        return f"data:audio/{form};base64,{data}"
    if kind.endswith("_embeds") and not isinstance(media, str):
        raise _wrong(where, f"{kind} must be base64 of a safetensors file")
    if isinstance(media, dict) and not media.keys() - {"url", "detail"}:
        media = media.get("url")
    if media is not None and not isinstance(media, str):
        raise _wrong(where, f"{kind} must be a URL, or an object with a url")
    if media == "":
        raise _wrong(where, f"{kind} is empty")
    return media


def _wrong(where: str, message: str) -> ApiError:
    return ApiError(400, f"{where}: {message}", param=where)
