"""Normalizes messages: text parts with guards, and media parts by modality, as templates and families take them.

Knows what `reading` found in messages; knows no template and no model family. Media are not opened.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from corellm.errors import MediaError, PromptError
from corellm.multimodal.chat.fields import OPERATOR_ROLES
from corellm.multimodal.chat.guarding import GUARD, Guard
from corellm.multimodal.chat.reading import Part, ReadMessages, read_messages
from corellm.multimodal.items import GivenEmbeddings


@dataclass(frozen=True)
class Guards:
    """The guards of a conversation's text, by who wrote it."""

    others: Guard
    """Guard of the text of users, tools and the assistant."""
    operator: Guard
    """Guard of the operator's text: system messages, tools' descriptions, template arguments."""

    def of(self, role: str) -> Guard:
        """The guard of a message's text."""
        return self.operator if role in OPERATOR_ROLES else self.others


def normalize_messages(messages: Any, guards: Guards) -> list[dict[str, Any]]:
    """Return normalized messages, content as `{"type": "text", "text"}` and `{"type": modality, modality: media}`.

    A media part keeps its `uuid`. Arguments of tool calls that are a JSON object written as a string become that
    object, which templates expect.

    Args:
        messages: dictionaries with `role` and `content` (text, parts, or None where the role allows it), or
            `ReadMessages`.
        guards: for their text and all other fields.

    Raises:
        PromptError: a malformed message; names `messages[i].content[j]`.
        MediaError: a media part without media, or a file of another machine.
    """
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence) or not messages:
        hint = "; put the message into a list" if isinstance(messages, Mapping) else ""
        if isinstance(messages, str):
            hint = '; for a text give [{"role": "user", "content": "..."}]'
        raise PromptError(f"messages must be a non-empty list of {{role, content}}, got {messages!r:.100}{hint}")
    read = messages if isinstance(messages, ReadMessages) else read_messages(messages)
    normalized = [_normalized(message, f"messages[{i}]", guards.of(message["role"])) for i, message in enumerate(read)]
    _guard_borders(normalized, guards)
    return normalized


def _normalized(message: Mapping[str, Any], where: str, guard: Guard) -> dict[str, Any]:
    others = {key: value for key, value in message.items() if key not in ("role", "content")}
    if "tool_calls" in others:
        others["tool_calls"] = _read_arguments(others["tool_calls"])
    return {
        "role": message["role"],
        **guard.value(others, where),
        "content": [_normalized_part(part, guard) for part in message["content"]],
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


def _normalized_part(part: Part, guard: Guard) -> dict[str, Any]:
    if part.modality == "text":
        return {"type": "text", "text": guard.text(part.value)}
    media = part.value
    if isinstance(media, str) and media[:7].lower() == "file://":
        media = _path_of(media, part)
    if part.are_embeddings and not isinstance(media, GivenEmbeddings):
        media = GivenEmbeddings(media[0] if getattr(media, "ndim", None) == 3 and len(media) == 1 else media)
    named = {} if part.uuid is None else {"uuid": part.uuid}
    return {"type": part.modality, part.modality: media, **named}


def _path_of(url: str, part: Part) -> str:
    """The path of a `file:` URL.

    Raises:
        MediaError: it names another machine.
    """
    host, slash, path = url[len("file://") :].partition("/")
    if host.lower() not in ("", "localhost"):
        raise MediaError(
            f"{part.where}: {url!r:.200} names another machine; a file: URL is file:// and an absolute path",
            modality=part.modality,
            param=part.where,
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
