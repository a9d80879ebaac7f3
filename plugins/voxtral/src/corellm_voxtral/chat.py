"""Conversations in the form that Mistral publishes for Voxtral. Knows messages and tokens' texts; opens no media."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from corellm.errors import PromptError
from corellm.hookspecs import ChatPrompt
from corellm.multimodal import collect_media

BOS, EOS = "<s>", "</s>"
PLACEHOLDER = "[BEGIN_AUDIO][AUDIO]"
_MARKS = {
    "system": ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "user": ("[INST]", "[/INST]"),
    "assistant": ("", EOS),
}
"""What is before and after a message of each role."""
_SAME = {"developer": "system"}


def make_context(messages: Sequence[Mapping[str, Any]]) -> ChatPrompt:
    """Make the prompt.

    Messages of one role in a row are one message, and texts in a row are its paragraphs. Spaces that end an
    assistant's message are left out.

    Args:
        messages: normalized messages.

    Raises:
        PromptError: a role that the family does not have, or audio in an assistant's message.
    """
    prompt = BOS
    for role, own in groupby(messages, key=lambda message: _SAME.get(message["role"], message["role"])):
        if role not in _MARKS:
            raise PromptError(f"Voxtral knows no messages of role {role!r}; it knows {', '.join(_MARKS)}")
        parts = [part for message in own for part in message["content"]]
        if role == "assistant" and any(part["type"] != "text" for part in parts):
            raise PromptError("Voxtral takes audio in messages of the user's and the system's, not of the assistant's")
        (before, after), content = _MARKS[role], _content(parts)
        prompt += f"{before}{content.rstrip(' ') if role == 'assistant' else content}{after}"
    return ChatPrompt(prompt, collect_media(messages))


def transcription(told: str) -> str:
    """Return the prompt that asks for what is said in one audio item: `told` is `lang:en`, or empty."""
    before, after = _MARKS["user"]
    return f"{BOS}{before}{PLACEHOLDER}{after}{told}[TRANSCRIBE]"


def _content(parts: Sequence[Mapping[str, Any]]) -> str:
    """Return texts with audio between."""
    content = ""
    for is_text, run in groupby(parts, key=lambda part: part["type"] == "text"):
        texts = [part["text"] if is_text else PLACEHOLDER for part in run]
        content += "\n\n".join(text for text in texts if text) if is_text else "".join(texts)
    return content
