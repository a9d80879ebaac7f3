"""A prompt that ends within the last message, for the model to continue it.

The last message's text gets a mark at its end before it is rendered; the prompt is cut at the mark. That works for any
template, and for families that write the prompt themselves. Knows neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corellm.errors import PromptError
from corellm.hookspecs import ChatPrompt

_MARK = "\ue0c1"
"""A private-use character. A space follows it, which is lost where the template strips text."""


def mark_end(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return normalized messages with a mark at the end of the last one's text.

    Raises:
        PromptError: the last message has no text.
    """
    *earlier, last = messages
    content = list(last["content"])
    for i in reversed(range(len(content))):
        if content[i]["type"] == "text" and content[i]["text"]:
            content[i] = {**content[i], "text": content[i]["text"] + _MARK + " "}
            return [*earlier, {**last, "content": content}]
    raise PromptError(
        f"messages[{len(earlier)}] has no text that continue_final_message could continue; leave it out to begin a new "
        "turn"
    )


def cut_at_end(chat: ChatPrompt, messages: Sequence[Mapping[str, Any]]) -> ChatPrompt:
    """A prompt up to the end of the last message's text, without the spaces there if the template strips text.

    Args:
        chat: the rendered `mark_end(messages)`.
        messages: normalized messages.

    Raises:
        PromptError: the end cannot be found.
    """
    text = [part["text"] for part in messages[-1]["content"] if part["type"] == "text" and part["text"]][-1]
    before, found, after = chat.prompt.rpartition(_MARK) if isinstance(chat.prompt, str) else ("", "", "")
    if not found or text.strip() not in before:
        raise PromptError(
            "continue_final_message: the last message's text is not in the prompt as it was given, because the "
            "model's chat template drops or changes it; end the conversation with another message"
        )
    return ChatPrompt(before if after.startswith(" ") else before.rstrip(), chat.mm_data)
