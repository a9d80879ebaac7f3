"""Qwen-VL's own prompt of a conversation: chatml, numbered images, without the oldest turns if they do not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from corellm.errors import PromptError, UnsupportedModalityError
from corellm.hookspecs import ChatPrompt
from corellm_qwen_vl.original.tokenizer import IM_END, IM_START, IMAGE_END, IMAGE_START

DEFAULT_SYSTEM = "You are a helpful assistant."
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclass
class _Turn:
    """The text and images from one user message to the next."""

    text: str = ""
    images: list[Any] = field(default_factory=list)


def placeholder(index: int) -> str:
    """Return the prompt text of an image, numbered from 1 in the whole conversation."""
    return f"Picture {index + 1}: {IMAGE_START}{IMAGE_END}\n"


def make_context(
    messages: Sequence[Mapping[str, Any]],
    *,
    max_tokens: int,
    count_tokens: Callable[[str, int], int],
    add_generation_prompt: bool,
) -> ChatPrompt:
    """Make the prompt; the newest turns are kept, as many whole ones as fit into `max_tokens`.

    As in the family's own function, except that the newest turn counts too: it is kept in any case. Images keep
    their numbers in the whole conversation, so a later "Picture 2" still names the same one.

    Args:
        messages: normalized messages.
        max_tokens: the prompt has no more, if the newest turn has not.
        count_tokens: number of tokens of a text and a number of images.
        add_generation_prompt: whether to end with the start of the assistant's turn.

    Raises:
        PromptError: a role the family does not have.
        UnsupportedModalityError: media other than images.
    """
    system, turns = _split_turns(messages)
    reply = f"\n{IM_START}assistant\n" if add_generation_prompt else ""
    size = count_tokens(system.text + reply, len(system.images))
    kept: list[_Turn] = []
    for turn in reversed(turns):
        size += count_tokens(turn.text, len(turn.images))
        if kept and size > max_tokens:
            break
        kept.insert(0, turn)
    parts = [system, *kept]
    return ChatPrompt(
        "".join(part.text for part in parts) + reply, {"image": [p for part in parts for p in part.images]}
    )


def _split_turns(messages: Sequence[Mapping[str, Any]]) -> tuple[_Turn, list[_Turn]]:
    """Return the system turn, by default `DEFAULT_SYSTEM`, and the turns after it."""
    system, turns = _Turn(), [_Turn()]
    num_images = 0
    for message in messages:
        role = _ROLES.get(message["role"])
        if role is None:
            raise PromptError(f"Qwen-VL knows no messages of role {message['role']!r}; it knows {', '.join(_ROLES)}")
        if role == "user" and turns[-1].text:
            turns.append(_Turn())
        turn = system if role == "system" and not turns[0].text else turns[-1]
        separator = "" if turn is system and not system.text else "\n"
        turn.text += f"{separator}{IM_START}{role}\n"
        for part in message["content"]:
            if part["type"] == "text":
                turn.text += part["text"]
                continue
            if part["type"] != "image":
                raise UnsupportedModalityError(
                    f"this model takes no {part['type']}; it takes image", modality=part["type"]
                )
            turn.text += placeholder(num_images)
            turn.images.append(part["image"])
            num_images += 1
        turn.text += IM_END
    if not system.text:
        system.text = f"{IM_START}system\n{DEFAULT_SYSTEM}{IM_END}"
    return system, turns
