"""Leaves out the oldest turns of a conversation until its prompt has at most some number of tokens: `max_window_size`.

Knows turns, items and their counts; templates, tokens and processing are functions of the caller.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from corellm.errors import MultiModalError, PromptTooLongError
from corellm.frontend.chat_processor import RenderedChat
from corellm.multimodal.chat.fields import OPERATOR_ROLES
from corellm.multimodal.chat.messages import media_parts

Messages = Sequence[Mapping[str, Any]]
"""Normalized messages."""


def shortenings(
    messages: Messages,
    max_tokens: int,
    render: Callable[[Messages], RenderedChat],
    num_tokens: Callable[[RenderedChat], int],
    expansion: Callable[[Mapping[str, Any], int], int],
    most_tokens: Mapping[str, int],
) -> Iterator[RenderedChat]:
    """Prompts of the conversation: with as many of the newest turns as fit, then with fewer ones, down to one.

    The first one fits, unless a placeholder depends on what is beside it, or the last turn alone is too long.
    Several hundred turns are rendered some ten times.

    Args:
        messages: the conversation.
        max_tokens: most tokens of a prompt, placeholders expanded.
        render: messages to a prompt.
        num_tokens: of a prompt as the processor finds it, placeholders not expanded.
        expansion: `(media part, its number within its modality)` to the tokens that expanding its placeholder adds.
            Called once per part, newest first, only while the conversation may fit.
        most_tokens: `{modality: tokens of the largest usual item}`.
    """
    first, turns = split_turns(messages)
    numbers = _numbers(messages)
    expansions: dict[int, int] = {}
    chats: dict[int, RenderedChat] = {}

    def kept(count: int) -> list[Mapping[str, Any]]:
        return [*first, *(message for turn in turns[-count:] for message in turn)]

    def fits(count: int) -> bool:
        try:
            chats[count] = chat = render(kept(count))
        except PromptTooLongError:
            return False
        size = num_tokens(chat)
        unseen = Counter({modality: len(items) for modality, items in chat.mm_data.items()})
        expanded = sum(items * most_tokens.get(modality, 0) for modality, items in unseen.items())
        if size + expanded <= max_tokens:
            return True  # whatever the items are
        for part in reversed(media_parts(kept(count))):
            if size > max_tokens:
                break
            if unseen[part["type"]] > 0:  # a family may have left older ones out itself
                unseen[part["type"]] -= 1
                if id(part) not in expansions:
                    expansions[id(part)] = expansion(part, numbers[id(part)])
                size += expansions[id(part)]
        return size <= max_tokens

    for count in range(_largest(len(turns), fits), 0, -1):
        yield chats[count] if count in chats else render(kept(count))


def refusal(max_tokens: int, num_tokens: int) -> PromptTooLongError:
    """The error for a conversation whose last turn does not fit."""
    return PromptTooLongError(
        f"the system message and the last user turn alone have {num_tokens} tokens, more than "
        f"max_window_size={max_tokens}; raise it, or shorten them"
    )


def split_turns(messages: Messages) -> tuple[list[Mapping[str, Any]], list[list[Mapping[str, Any]]]]:
    """The system messages at the start, and the turns after them, at least one.

    A turn begins with the first of a user's consecutive messages: an image and the question about it, sent as two
    messages, stay together, and so do a tool's call and its result.
    """
    first: list[Mapping[str, Any]] = []
    turns: list[list[Mapping[str, Any]]] = [[]]
    previous = None
    for message in messages:
        role = message["role"]
        if role in OPERATOR_ROLES and turns == [[]]:
            first.append(message)
            continue
        if role == "user" and previous not in (None, "user"):
            turns.append([])
        turns[-1].append(message)
        previous = role
    return first, turns


@contextmanager
def numbered_in(messages: Messages, chat: RenderedChat) -> Iterator[None]:
    """Name items in errors by their number in the conversation, of which a prompt has the newest."""
    counts = Counter(part["type"] for part in media_parts(messages))
    try:
        yield
    except MultiModalError as error:
        left_out = counts[error.modality] - len(chat.mm_data.get(error.modality or "", ()))
        if error.item is not None and left_out > 0:
            renumber(error, error.item + left_out)
        raise


def renumber(error: MultiModalError, number: int) -> None:
    """Have an error name its item by another number."""
    error.args = (re.sub(rf"^{error.modality} {error.item}\b", f"{error.modality} {number}", str(error)),)
    error.item = number


def _numbers(messages: Messages) -> dict[int, int]:
    """`{id of a media part: its number within its modality}`."""
    counts: Counter[str] = Counter()
    numbers = {}
    for part in media_parts(messages):
        numbers[id(part)] = counts[part["type"]]
        counts[part["type"]] += 1
    return numbers


def _largest(high: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `high` that fits, by bisection; 1 without trying."""
    if high == 1 or fits(high):
        return high
    low = 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
