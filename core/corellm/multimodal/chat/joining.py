"""A conversation as text without a template. Knows placeholder strings, not their modalities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from corellm.errors import PromptError
from corellm.hookspecs import ChatPrompt
from corellm.multimodal.chat.messages import collect_media

Placeholder = Callable[[str, int], str | None]
"""`(modality, index of the item)` to its placeholder string; None where the family has none."""


def with_text(messages: Sequence[Mapping[str, Any]], placeholder: Placeholder) -> list[dict[str, Any]]:
    """Messages with their content as text, media as placeholder strings.

    Raises:
        PromptError: the family has no placeholder string.
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


def join_chat(
    messages: Sequence[Mapping[str, Any]], placeholder: Placeholder, *, add_generation_prompt: bool
) -> ChatPrompt:
    """Return a prompt made without a template: `ROLE: content` lines, media as their placeholder strings.

    Raises:
        PromptError: a placeholder is needed and the family has none.
    """
    lines = [
        m["content"] if m["role"] == "system" else f"{m['role'].upper()}: {m['content']}"
        for m in with_text(messages, placeholder)
    ]
    if add_generation_prompt:
        lines.append("ASSISTANT:")
    return ChatPrompt("\n".join(lines), collect_media(messages))
