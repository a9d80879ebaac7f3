"""From an OpenAI-style conversation to prompt text and media, in order.

Knows message shapes and chat templates; knows no model family. Text that users write is guarded, so that a special
token they type (`<image>`, `</s>`) stays text: a guard character is put inside the literal before the template is
rendered, and the tokenizer is later fed the pieces between guards, none of which can match the special token.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from corellm.errors import MediaError, PromptError
from corellm.hookspecs import ChatPrompt

logger = logging.getLogger(__name__)

Placeholder = Callable[[str, int], str | None]
"""Of `(modality, index of the item)`: its placeholder string, None where the family names none."""

GUARD = "\ue0c0"
"""A private-use character: in no tokenizer's special tokens. Users' own are removed from guarded text."""

ROLES = ("system", "developer", "user", "assistant", "tool")
_MEDIA_PARTS = {
    "image": "image",
    "image_url": "image",
    "image_pil": "image",
    "input_image": "image",
    "image_embeds": "image",
    "video": "video",
    "video_url": "video",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
}
"""Content part type to modality."""


def guard_text(text: str, literals: Collection[str]) -> str:
    """Put a guard after the first character of every special token's literal in `text`."""
    guarded = text.replace(GUARD, "")
    for literal in literals:
        if len(literal) > 1 and literal in guarded:
            guarded = guarded.replace(literal, literal[0] + GUARD + literal[1:])
    return guarded


def normalize_messages(
    messages: Any, literals: Collection[str], *, assistant: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """Bring messages to one shape: content a list of `{"type": "text", "text"}`, `{"type": modality, modality: media}`.

    Args:
        messages: dictionaries with `role` and `content` (text, parts, or None where the role allows it).
        literals: special token strings that must stay text.
        assistant: those that must in the assistant's messages; None for the same. What a model wrote may hold tokens
            of its own (a box around a thing, a tool call) that it shall read back as such.

    Raises:
        PromptError: a malformed message; names `messages[i].content[j]`.
    """
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence) or not messages:
        raise PromptError(f"messages must be a non-empty list of {{role, content}}, got {messages!r:.100}")
    own = literals if assistant is None else assistant
    normalized = [
        _normalize_message(i, m, own if isinstance(m, Mapping) and m.get("role") == "assistant" else literals)
        for i, m in enumerate(messages)
    ]
    _guard_borders([p for m in normalized for p in m["content"] if p["type"] == "text"], literals)
    return normalized


def _normalize_message(index: int, message: Any, literals: Collection[str]) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise PromptError(f"{where} must be a dict with a role and content, got {message!r:.100}")
    if message["role"] not in ROLES:
        raise PromptError(f"{where}.role must be one of {', '.join(ROLES)}; got {message['role']!r:.100}")
    content = message.get("content")
    if content is None and message["role"] == "assistant":
        content = []  # a turn that was only tool calls
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise PromptError(f"{where}.content must be text or a list of parts, got {content!r:.100}")
    parts = [_normalize_part(f"{where}.content[{j}]", part, literals) for j, part in enumerate(content)]
    others = {key: _guard_nested(value, literals) for key, value in message.items() if key != "role"}
    return {"role": message["role"], **others, "content": parts}


def _guard_nested(value: Any, literals: Collection[str]) -> Any:
    """Guard every string in whatever else a message carries, tool calls for instance."""
    if isinstance(value, str):
        return guard_text(value, literals)
    if isinstance(value, Mapping):
        return {key: _guard_nested(item, literals) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_guard_nested(item, literals) for item in value]
    return value


def _guard_borders(parts: list[dict[str, Any]], literals: Collection[str]) -> None:
    """Guard borders between texts where a special token's literal runs across one, should a template join them."""
    for first, second in itertools.pairwise(parts):
        if _joins(first["text"], second["text"], literals):
            first["text"] += GUARD


def _joins(left: str, right: str, literals: Collection[str]) -> bool:
    """Whether `left` ends with a beginning of a literal that `right` could go on with."""
    return any(
        left.endswith(literal[:i]) and (right.startswith(literal[i:]) or literal[i:].startswith(right))
        for literal in literals
        for i in range(1, len(literal))
    )


def _normalize_part(where: str, part: Any, literals: Collection[str]) -> dict[str, Any]:
    if isinstance(part, str):
        part = {"type": "text", "text": part}
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise PromptError(f"{where} must be a dict with a type, got {part!r:.100}")
    kind = part["type"]
    if kind in ("text", "input_text"):
        if not isinstance(part.get("text"), str):
            raise PromptError(f"{where}.text must be a string, got {part.get('text')!r:.100}")
        return {"type": "text", "text": guard_text(part["text"], literals)}
    if kind not in _MEDIA_PARTS:
        known = ", ".join(["text", *_MEDIA_PARTS])
        raise PromptError(f"{where}.type {kind!r:.100} is not known; known: {known}")
    modality = _MEDIA_PARTS[kind]
    media = part.get(kind, part.get(modality))
    if isinstance(media, Mapping) and "url" in media:
        media = media["url"]
    if isinstance(media, Mapping) and isinstance(media.get("data"), str):  # OpenAI's form of a sound
        media = f"data:{modality}/{media.get('format', '')};base64,{media['data']}"
    if media is None:
        raise MediaError(f"{where} has no {kind!r}", modality=modality)
    if isinstance(media, str) and media.startswith("file://"):
        media = media.removeprefix("file://")
    if kind == "image_embeds" and getattr(media, "ndim", None) == 3 and len(media) == 1:
        media = media[0]
    return {"type": modality, modality: media}


def collect_media(messages: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The media of normalized messages, `{modality: in order of appearance}`."""
    media: dict[str, list[Any]] = {}
    for message in messages:
        for part in message["content"]:
            if part["type"] != "text":
                media.setdefault(part["type"], []).append(part[part["type"]])
    return media


def render_chat(
    messages: Sequence[Mapping[str, Any]],
    template: str,
    tokenizer: Any,
    placeholder: Placeholder,
    *,
    add_generation_prompt: bool,
) -> ChatPrompt:
    """Render a Jinja chat template over normalized messages.

    Some templates walk over content parts, others take content as text, some do either depending on the role; which,
    is found out by trying. Where content is text, media are their placeholder strings.

    Raises:
        PromptError: the template refuses the conversation or is broken, or there is no placeholder string.
    """

    def render(conversation: Sequence[Mapping[str, Any]], generation: bool) -> str:
        prompt: str = tokenizer.apply_chat_template(
            conversation, chat_template=template, tokenize=False, add_generation_prompt=generation
        )
        return prompt

    try:
        in_parts = _roles_in_parts(render, {message["role"] for message in messages})
        as_text = _with_text([m for m in messages if m["role"] not in in_parts], placeholder)
        conversation = [_with_parts(m) if m["role"] in in_parts else as_text.pop(0) for m in messages]
        return ChatPrompt(render(conversation, add_generation_prompt), collect_media(messages))
    except PromptError:
        raise
    except Exception as error:  # whatever a template can raise
        raise PromptError(f"the chat template does not take this conversation: {error}") from error


def _roles_in_parts(
    render: Callable[[Sequence[Mapping[str, Any]], bool], str], roles: Collection[str]
) -> frozenset[str]:
    """The roles whose content a template walks over: then its text comes out, and nothing of its form does."""
    probe = "corellm-probe"
    found: set[str] = set()
    for role in ("user", *sorted(set(roles) - {"user"})):
        user: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "x"}] if "user" in found else "x"}
        probed: dict[str, Any] = {"role": role, "content": [{"type": "text", "text": probe}]}
        conversations = {"user": [probed], "system": [probed, user], "developer": [probed, user]}
        try:
            rendered = render(conversations.get(role, [user, probed]), False)
        except Exception:
            logger.debug("the chat template takes %s content as text only", role, exc_info=True)
            continue
        if probe in rendered and "'type'" not in rendered:
            found.add(role)
    return frozenset(found)


def _with_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    """Media parts without their media: a template places them, by their type or by the key they have, as published
    ones do either; it never sees pixels.
    """
    parts = [p if p["type"] == "text" else {"type": p["type"], p["type"]: True} for p in message["content"]]
    return {**message, "content": parts}


def _with_text(messages: Sequence[Mapping[str, Any]], placeholder: Placeholder) -> list[dict[str, Any]]:
    """Content as text, media as placeholder strings.

    Raises:
        PromptError: the family names no placeholder string.
    """
    counts: Counter[str] = Counter()
    conversation = []
    for message in messages:
        text = ""
        for part in message["content"]:
            if part["type"] == "text":
                text += part["text"]
                continue
            string = placeholder(part["type"], counts[part["type"]])
            counts[part["type"]] += 1
            if string is None:
                raise PromptError(f"this model has no way to place {part['type']} parts in a conversation")
            text += string
        conversation.append({**message, "content": text})
    return conversation


def join_chat(messages: Sequence[Mapping[str, Any]], placeholder: Placeholder) -> ChatPrompt:
    """Build a prompt without any template: `ROLE: content` lines, media as their placeholder strings.

    Raises:
        PromptError: a placeholder is needed and the family names none.
    """
    lines = [
        m["content"] if m["role"] == "system" else f"{m['role'].upper()}: {m['content']}"
        for m in _with_text(messages, placeholder)
    ]
    return ChatPrompt("\n".join([*lines, "ASSISTANT:"]), collect_media(messages))
