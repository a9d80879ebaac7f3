"""Normalizes messages: all spellings that clients use become text parts, and media parts by modality.

Knows message shapes; knows no template and no model family. Text gets its guards here; media are not opened.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from corellm.errors import MediaError, PromptError
from corellm.multimodal.chat.guarding import GUARD, Guard
from corellm.multimodal.items import GivenEmbeddings

ROLES = ("system", "developer", "user", "assistant", "tool")
OPERATOR_ROLES = frozenset({"system", "developer"})
"""Roles whose text is the operator's own."""

_MEDIA_PARTS = {
    "image": "image",
    "image_url": "image",
    "image_pil": "image",
    "input_image": "image",
    "image_embeds": "image",
    "video_embeds": "video",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
    "audio_embeds": "audio",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
}
"""Content part type to modality."""


@dataclass(frozen=True)
class Guards:
    """The guards of a conversation's text, by who wrote it."""

    others: Guard
    """For text of users, tools and the assistant."""
    operator: Guard
    """For text of the operator: system messages, tools' descriptions, template arguments."""

    def of(self, role: str) -> Guard:
        """The guard of a message's text."""
        return self.operator if role in OPERATOR_ROLES else self.others


def normalize_messages(messages: Any, guards: Guards) -> list[dict[str, Any]]:
    """Return normalized messages, content as `{"type": "text", "text"}` and `{"type": modality, modality: media}`.

    A media part keeps its `uuid`. Arguments of tool calls that are a JSON object written as a string become that
    object, which templates expect.

    Args:
        messages: dictionaries with `role` and `content` (text, parts, or None where the role allows it).
        guards: for their text and all other fields.

    Raises:
        PromptError: a malformed message; names `messages[i].content[j]`.
        MediaError: a media part without media.
    """
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence) or not messages:
        hint = "; put the message into a list" if isinstance(messages, Mapping) else ""
        if isinstance(messages, str):
            hint = '; for a text give [{"role": "user", "content": "..."}]'
        raise PromptError(f"messages must be a non-empty list of {{role, content}}, got {messages!r:.100}{hint}")
    normalized = [_normalize_message(f"messages[{i}]", message, guards) for i, message in enumerate(messages)]
    _guard_borders(normalized, guards)
    return normalized


def _normalize_message(where: str, message: Any, guards: Guards) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise PromptError(f"{where} must be a dict with a role and content, got {message!r:.100}")
    role = message["role"]
    if role not in ROLES:
        raise PromptError(f"{where}.role must be one of {', '.join(ROLES)}; got {role!r:.100}")
    content = message.get("content")
    if content is None and role == "assistant":
        content = []  # a turn that was only tool calls
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise PromptError(f"{where}.content must be text or a list of parts, got {content!r:.100}")
    guard = guards.of(role)
    others = {key: value for key, value in message.items() if key not in ("role", "content")}
    if "tool_calls" in others:
        others["tool_calls"] = _read_arguments(others["tool_calls"])
    return {
        "role": role,
        **guard.value(others, where),
        "content": [_normalize_part(f"{where}.content[{j}]", part, guard) for j, part in enumerate(content)],
    }


def _read_arguments(calls: Any) -> Any:
    """Tool calls with JSON arguments as objects; anything else is unchanged."""
    if not isinstance(calls, (list, tuple)):
        return calls
    return [_with_arguments_read(call) for call in calls]


def _with_arguments_read(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


def _normalize_part(where: str, part: Any, guard: Guard) -> dict[str, Any]:
    if isinstance(part, str):
        part = {"type": "text", "text": part}
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise PromptError(f"{where} must be a dict with a type, got {part!r:.100}")
    kind = part["type"]
    if kind in ("text", "input_text"):
        if not isinstance(part.get("text"), str):
            raise PromptError(f"{where}.text must be a string, got {part.get('text')!r:.100}")
        return {"type": "text", "text": guard.text(part["text"])}
    if kind not in _MEDIA_PARTS:
        known = ", ".join(["text", *_MEDIA_PARTS])
        raise PromptError(f"{where}.type {kind!r:.100} is not known; known: {known}")
    modality, uuid = _MEDIA_PARTS[kind], part.get("uuid")
    media = _media(where, part, kind, modality)
    if media is None and uuid is None:
        raise MediaError(f"{where} has no {kind!r}", modality=modality)
    named = {} if uuid is None else {"uuid": uuid}
    return {"type": modality, modality: media, **named}


def _media(where: str, part: Mapping[str, Any], kind: str, modality: str) -> Any:
    """Media of a part, under the key of its type, its modality or `<modality>_url`; None if it has none."""
    given = [part[key] for key in (kind, modality, f"{modality}_url") if part.get(key) is not None]
    media: Any = given[0] if given else None
    if isinstance(media, Mapping) and "url" in media:
        media = media["url"]
    if isinstance(media, Mapping) and isinstance(media.get("data"), str):  # OpenAI's `input_audio`
        media = f"data:{modality}/{media.get('format', '')};base64,{media['data']}"
    if isinstance(media, str) and media[:7].lower() == "file://":
        media = _path_of(media, where, modality)
    if kind == f"{modality}_embeds" and media is not None:
        return GivenEmbeddings(media[0] if getattr(media, "ndim", None) == 3 and len(media) == 1 else media)
    return media


def _path_of(url: str, where: str, modality: str) -> str:
    """The path of a `file:` URL.

    Raises:
        MediaError: it names another machine.
    """
    host, slash, path = url[len("file://") :].partition("/")
    if host.lower() not in ("", "localhost"):
        raise MediaError(
            f"{where}: {url!r:.200} names another machine; a file: URL is file:// and an absolute path",
            modality=modality,
        )
    return unquote(slash + path)


def _guard_borders(messages: Sequence[Mapping[str, Any]], guards: Guards) -> None:
    """Guard borders between texts where a special token's literal would cross one if a template joins them."""
    texts = [(message["role"], part) for message in messages for part in message["content"] if part["type"] == "text"]
    for (first_role, first), (second_role, second) in itertools.pairwise(texts):
        guard = guards.operator if {first_role, second_role} <= OPERATOR_ROLES else guards.others
        if guard.joins(first["text"], second["text"]):
            first["text"] += GUARD


def collect_media(messages: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The media of normalized messages, `{modality: in order of appearance}`."""
    media: dict[str, list[Any]] = {}
    for part in media_parts(messages):
        media.setdefault(part["type"], []).append(part[part["type"]])
    return media


def collect_uuids(messages: Sequence[Mapping[str, Any]], mm_data: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Uuids of a conversation's media, None for media without one; only of modalities that have any.

    Args:
        messages: normalized.
        mm_data: the media in the prompt: a family may omit those of the oldest turns.
    """
    uuids: dict[str, list[Any]] = {}
    for modality, media in mm_data.items():
        parts = [part for part in media_parts(messages) if part["type"] == modality]
        found: list[Any] = []
        for item in reversed(media):
            while parts and parts[-1][modality] is not item:
                parts.pop()
            found.insert(0, parts.pop().get("uuid") if parts else None)
        if any(uuid is not None for uuid in found):
            uuids[modality] = found
    return uuids


def media_parts(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The media parts of normalized messages, in order."""
    return [part for message in messages for part in message["content"] if part["type"] != "text"]
