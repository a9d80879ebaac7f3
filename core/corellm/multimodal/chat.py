"""From an OpenAI-style conversation to prompt text and media, in order.

Knows message shapes and chat templates; knows no model family. Text that users write is guarded, so that a special
token they type (`<image>`, `</s>`) stays text: a guard character is put inside the literal before the template is
rendered, and the tokenizer is later fed the pieces between guards, none of which can match the special token.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from corellm.errors import MediaError, PromptError
from corellm.hookspecs import ChatPrompt

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


def normalize_messages(messages: Any, literals: Collection[str]) -> list[dict[str, Any]]:
    """Bring messages to one shape: content a list of `{"type": "text", "text"}`, `{"type": modality, modality: media}`.

    Args:
        messages: dictionaries with `role` and `content` (text, parts, or None where the role allows it).
        literals: special token strings that must stay text.

    Raises:
        PromptError: a malformed message; names `messages[i].content[j]`.
    """
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence) or not messages:
        raise PromptError(f"messages must be a non-empty list of {{role, content}}, got {messages!r:.100}")
    return [_normalize_message(i, message, literals) for i, message in enumerate(messages)]


def _normalize_message(index: int, message: Any, literals: Collection[str]) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise PromptError(f"{where} must be a dict with a role and content, got {message!r:.100}")
    if message["role"] not in ROLES:
        raise PromptError(f"{where}.role must be one of {', '.join(ROLES)}; got {message['role']!r:.100}")
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise PromptError(f"{where}.content must be text or a list of parts, got {content!r:.100}")
    parts = [_normalize_part(f"{where}.content[{j}]", part, literals) for j, part in enumerate(content)]
    return {**message, "content": parts}


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
    if media is None:
        raise MediaError(f"{where} has no {kind!r}", modality=modality)
    if isinstance(media, str) and media.startswith("file://"):
        media = media.removeprefix("file://")
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
    messages: Sequence[Mapping[str, Any]], template: str, tokenizer: Any, *, add_generation_prompt: bool
) -> ChatPrompt:
    """Render a Jinja chat template over normalized messages.

    Messages of one text part are given to the template as plain text, as most text templates expect.

    Raises:
        PromptError: the template refuses the conversation or is broken.
    """
    import jinja2

    conversation = [_for_template(message) for message in messages]
    try:
        prompt = tokenizer.apply_chat_template(
            conversation, chat_template=template, tokenize=False, add_generation_prompt=add_generation_prompt
        )
    except (jinja2.TemplateError, TypeError) as error:
        raise PromptError(f"the chat template does not take this conversation: {error}") from error
    return ChatPrompt(prompt, collect_media(messages))


def _for_template(message: Mapping[str, Any]) -> dict[str, Any]:
    """Media parts keep only their type: a template places them, it never sees pixels."""
    parts = [part if part["type"] == "text" else {"type": part["type"]} for part in message["content"]]
    if all(part["type"] == "text" for part in parts):
        return {**message, "content": "".join(part["text"] for part in parts)}
    return {**message, "content": parts}


def join_chat(
    messages: Sequence[Mapping[str, Any]], placeholder: Callable[[str, int], str | None]
) -> ChatPrompt | None:
    """Build a prompt without any template: `role: content` lines, media as their placeholder strings.

    Args:
        messages: normalized.
        placeholder: of `(modality, index of the item)`, None where the family says nothing.

    Returns:
        None if a placeholder is needed and the family names none.
    """
    counts: dict[str, int] = {}
    lines = []
    for message in messages:
        text = ""
        for part in message["content"]:
            if part["type"] == "text":
                text += part["text"]
                continue
            index = counts.get(part["type"], 0)
            counts[part["type"]] = index + 1
            string = placeholder(part["type"], index)
            if string is None:
                return None
            text += string
        lines.append(f"{message['role'].upper()}: {text}" if message["role"] != "system" else text)
    return ChatPrompt("\n".join([*lines, "ASSISTANT:"]), collect_media(messages))
