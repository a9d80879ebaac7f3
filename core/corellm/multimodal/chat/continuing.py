"""A prompt that ends within the last message, for the model to continue it.

The last message's text gets a mark at its end before it is rendered; the prompt is cut at the mark. That works for any
template, and for families that write the prompt themselves. Knows neither. Tokens that a family puts behind every
prompt would end the message: they are counted, to be removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corellm.errors import PromptError
from corellm.hookspecs import ChatPrompt

_MARK = "\ue0c1"
"""A private-use character. A space follows it, which is lost where the template strips text."""
_COMPARED = 8
"""Tokens at the end of a prompt by which it is found again."""


def is_begun(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last of normalized messages says itself that the output goes on with it (`prefix`)."""
    return messages[-1]["role"] == "assistant" and messages[-1].get("prefix") is True


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
        "the last message has no text that continue_final_message or prefix could continue; leave it out to begin a "
        "new turn"
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


def num_appended(token_ids: Sequence[int], before: Sequence[int]) -> int:
    """Return how many tokens follow the end of an earlier form of a prompt.

    Args:
        token_ids: the prompt, after the family's own tokens were added or removed.
        before: without them.
    """
    end = list(before[-_COMPARED:])
    for count in range(len(token_ids) - len(end) + 1):
        last = len(token_ids) - count
        if list(token_ids[last - len(end) : last]) == end:
            return count
    return 0
