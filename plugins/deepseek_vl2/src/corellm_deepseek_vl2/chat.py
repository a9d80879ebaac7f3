"""DeepSeek-VL2's own prompt of a conversation: what the published processor tokenizes, message by message.

A message of the user's is followed by the mark of the assistant's, whose text, tokenized by itself, follows without a
space and ends with the token that ends an output. A system message comes first, without a mark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corellm.errors import PromptError
from corellm.hookspecs import ChatPrompt
from corellm.multimodal import TEXT_BOUNDARY, collect_media
from corellm_deepseek_vl2.tokenizer import ASSISTANT, USER


def make_context(
    messages: Sequence[Mapping[str, Any]], *, placeholder: str, end: str, add_generation_prompt: bool
) -> ChatPrompt:
    """Make the prompt.

    Args:
        messages: normalized messages.
        placeholder: the text that stands for an image.
        end: the text of the token that ends an output.
        add_generation_prompt: whether to end with the start of the assistant's turn.

    Raises:
        PromptError: a role or a place of an image that the family does not have.
    """
    prompt = ""
    for index, message in enumerate(messages):
        role, parts = message["role"], message["content"]
        if role != "user" and any(part["type"] != "text" for part in parts):
            raise PromptError(f"DeepSeek-VL2 takes images in messages of the user's, not of role {role!r}")
        text = "".join(part["text"] if part["type"] == "text" else placeholder for part in parts).strip()
        if role == "user":
            prompt += f"{USER}: {text}\n\n" if text else f"{USER}:"
        elif role == "assistant":
            prompt += f"{ASSISTANT}:{TEXT_BOUNDARY}{text}{end}"
        elif role in ("system", "developer") and index == 0:
            prompt += text
        elif role in ("system", "developer"):
            raise PromptError("DeepSeek-VL2 takes a system message only as the first message of a conversation")
        else:
            raise PromptError(f"DeepSeek-VL2 knows no messages of role {role!r}; it knows system, user, assistant")
    return ChatPrompt(prompt + (f"{ASSISTANT}:" if add_generation_prompt else ""), collect_media(messages))
