"""`max_window_size` by itself: what a turn is, how few times a conversation is rendered, which items are processed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from corellm.errors import PromptTooLongError
from corellm.frontend.chat_processor import RenderedChat
from corellm.frontend.conversation_limit import shortenings, split_turns
from corellm.multimodal.chat import collect_media
from corellm.multimodal.chat.messages import media_parts


def message(role: str, text: str = "", *media: Any) -> dict[str, Any]:
    return {
        "role": role,
        "content": [*({"type": "image", "image": medium} for medium in media), {"type": "text", "text": text}],
    }


def test_turns_begin_where_users_begin_to_speak() -> None:
    """System messages at the start are of no turn; several messages of a user, and a tool's result, split nothing."""
    roles = "system developer assistant user user assistant tool assistant user system user assistant user"
    first, turns = split_turns([message(role) for role in roles.split()])
    assert [m["role"] for m in first] == ["system", "developer"]
    assert [" ".join(m["role"] for m in turn) for turn in turns] == [
        "assistant", "user user assistant tool assistant", "user system", "user assistant", "user",
    ]  # fmt: skip
    assert split_turns([message("system")]) == ([message("system")], [[]])


class Counting:
    """A family whose text has a token per character, and whose images have as many tokens as their number says."""

    def __init__(self, longest: int = 10**9) -> None:
        self.longest, self.rendered, self.processed = longest, 0, list[tuple[int, int]]()

    def render(self, messages: Sequence[Mapping[str, Any]]) -> RenderedChat:
        self.rendered += 1
        text = "".join(p["text"] for m in messages for p in m["content"] if p["type"] == "text")
        if len(text) > self.longest:
            raise PromptTooLongError("too long to be tokenized")
        return RenderedChat(text, [1] * (len(text) + len(media_parts(messages))), collect_media(messages), {})

    def expansion(self, part: Mapping[str, Any], number: int) -> int:
        self.processed.append((number, part["image"]))
        return int(part["image"]) - 1

    def shortenings(
        self, messages: Sequence[Mapping[str, Any]], tokens: int, most: int = 10**6
    ) -> Iterator[RenderedChat]:
        return shortenings(
            messages, tokens, self.render, lambda chat: len(chat.token_ids), self.expansion, {"image": most}
        )

    def kept(self, messages: Sequence[Mapping[str, Any]], tokens: int, **options: Any) -> str | None:
        return next(self.shortenings(messages, tokens, **options)).text


def test_bisected() -> None:
    """A thousand turns are rendered a dozen times; a conversation that fits once; its text is counted as a whole."""
    messages = [message(role, "x" * 5) for _ in range(1000) for role in ("user", "assistant")]
    for tokens, kept in ((10_000, 1000), (9_999, 999), (25, 2), (20, 2), (19, 1), (3, 1)):
        family = Counting()
        assert family.kept(messages, tokens) == "x" * 10 * kept
        assert family.rendered <= (1 if kept == 1000 else 12)


def test_text_that_cannot_be_tokenized_does_not_fit() -> None:
    """Its error is raised only for the last turn."""
    messages = [message("system", "s"), message("user", "a" * 50), message("assistant", "b"), message("user", "c")]
    assert Counting(longest=50).kept(messages, 1000) == "sc"
    with pytest.raises(PromptTooLongError, match="tokenized"):
        Counting(longest=1).kept(messages, 1000)


def test_items_of_turns_left_out_are_not_processed() -> None:
    """From the newest on, until one does not fit; none where text alone decides, or where all fit in any case."""
    sizes = (70, 60, 50, 40, 30, 20)
    messages = [m for size in sizes for m in (message("user", "x" * 10, size), message("assistant", ""))]
    family = Counting()
    assert family.kept(messages, 120) == "x" * 30  # 20 + 30 + 40 and 10 each
    assert family.processed == [(5, 20), (4, 30), (3, 40)]
    family = Counting()
    assert family.kept(messages, 15) == "x" * 10
    assert family.processed == []
    family = Counting()
    assert family.kept(messages, 486, most=70) == "x" * 60
    assert family.processed == []


def test_shorter_ones_follow() -> None:
    """For placeholders that depend on what is beside them: each has one turn less."""
    messages = [
        message("user", "a"),
        message("assistant"),
        message("user", "b"),
        message("assistant"),
        message("user", "c"),
    ]
    assert [chat.text for chat in Counting().shortenings(messages, 2)] == ["bc", "c"]
