"""Message parts in all their spellings become the same few, media keep their order, and text stays text."""

from __future__ import annotations

import re
from typing import Any

import pytest

from corellm.errors import MediaError, PromptError
from corellm.hookspecs import ChatPrompt
from corellm.multimodal import TEXT_BOUNDARY, collect_media
from corellm.multimodal.chat.continuing import cut_at_end, mark_end
from corellm.multimodal.chat.guarding import GUARD, Guard, pieces, unguarded
from corellm.multimodal.chat.joining import join_chat
from corellm.multimodal.chat.messages import Guards, collect_uuids, normalize_messages
from corellm.multimodal.chat.rendering import ChatRenderer
from corellm.templates.renderer import TemplateRenderer

OPEN = Guards(Guard([]), Guard([]))


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


@pytest.mark.parametrize(
    ("part", "modality", "media"),
    [
        ({"type": "image", "image": "a.png"}, "image", "a.png"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}, "image", "data:image/png;base64,AA"),
        ({"type": "image_url", "image_url": "a.png"}, "image", "a.png"),
        ({"type": "input_image", "image_url": "a.png", "detail": "low"}, "image", "a.png"),
        ({"type": "input_image", "image_url": {"url": "a.png"}}, "image", "a.png"),
        ({"type": "input_image", "input_image": "a.png"}, "image", "a.png"),
        ({"type": "video", "video": "file:///b.mp4"}, "video", "/b.mp4"),
        ({"type": "video_url", "video_url": {"url": "b.mp4"}}, "video", "b.mp4"),
        ({"type": "input_video", "input_video": {"data": "AA", "format": "mp4"}}, "video", "data:video/mp4;base64,AA"),
        ({"type": "input_video", "video_url": "b.mp4"}, "video", "b.mp4"),
        ({"type": "video", "video": ("frames", {"fps": 2})}, "video", ("frames", {"fps": 2})),
        ({"type": "audio", "audio": b"bytes"}, "audio", b"bytes"),
        ({"type": "audio_url", "audio_url": {"url": "FILE://localhost/a%20b/c%23%25.wav"}}, "audio", "/a b/c#%.wav"),
        ({"type": "image_url", "image_url": {"url": "file:///a b/100%.png"}}, "image", "/a b/100%.png"),
        (
            {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
            "audio",
            "data:audio/wav;base64,UklGRg==",
        ),
    ],
)  # fmt: skip
def test_media_parts(part: dict[str, Any], modality: str, media: Any) -> None:
    """OpenAI's and Hugging Face's names for the same thing."""
    (message,) = normalize_messages([user(part)], OPEN)
    assert message["content"] == [{"type": modality, modality: media}]


def test_media_of_a_conversation_keep_their_order() -> None:
    """Media of each modality keep their order through all messages."""
    contents = [["i1", "v1", "i2"], ["a1", "i3"], ["v2", "a2"]]
    names = {"i": "image", "v": "video", "a": "audio"}
    messages = [user(*({"type": names[m[0]], names[m[0]]: m} for m in content)) for content in contents]
    assert collect_media(normalize_messages(messages, OPEN)) == {
        "image": ["i1", "i2", "i3"],
        "video": ["v1", "v2"],
        "audio": ["a1", "a2"],
    }


def test_uuids_go_with_their_media() -> None:
    """Also where a family leaves out the oldest turns; media may be left to the cache."""
    same = b"same"
    messages = normalize_messages(
        [
            user({"type": "image", "image": same, "uuid": "one"}, {"type": "audio", "audio": b"a"}),
            user({"type": "image", "image": same}, {"type": "image", "image": None, "uuid": "three"}),
        ],
        OPEN,
    )
    media = collect_media(messages)
    assert media == {"image": [same, same, None], "audio": [b"a"]}
    assert collect_uuids(messages, media) == {"image": ["one", None, "three"]}
    assert collect_uuids(messages, {"image": [same, None]}) == {"image": [None, "three"]}
    assert collect_uuids(messages, {"image": []}) == {}


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (
            [{"type": "hologram", "hologram": 1}],
            PromptError,
            r"messages\[0\].content\[0\]: type 'hologram' is not known",
        ),
        (["hi", {"type": "video"}], MediaError, r"messages\[0\].content\[1\]: .* needs 'video'"),
        (
            [{"type": "input_image", "file_id": "f"}],
            PromptError,
            r"messages\[0\].content\[0\]: file_id is not supported",
        ),
        ([{"type": "image", "image": "file://host/a.png"}], MediaError, r"content\[0\]: .* names another machine"),
        ([{"type": "text", "text": 1}], PromptError, r"content\[0\]: .* a string under 'text'"),
        (7, PromptError, "list of parts"),
    ],
)
def test_malformed_parts(content: Any, error: type[Exception], words: str) -> None:
    """Each names the part."""
    with pytest.raises(error, match=words):
        normalize_messages([{"role": "user", "content": content}], OPEN)


def test_what_is_not_json() -> None:
    """A template gets JSON values; what else a message carries is named."""
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    for value, words in (
        ([{"a": object()}], r"messages\[0\].extra\[0\].a is a object"),
        ({1: 2}, r"messages\[0\].extra is a dict"),
        (b"x", r"messages\[0\].extra is a bytes"),
        (deep, r"messages\[0\] is nested"),
    ):
        with pytest.raises(PromptError, match=words):
            normalize_messages([{"role": "user", "content": "x", "extra": value}], OPEN)


# --- guards -----------------------------------------------------------------------------------------------------------

LITERALS = ["<s>", "</s>", "<image>", "<image", "<|im_end|>", "|im_end|><", "[INST]", "aa", "x"]


def tokens_of(text: str) -> list[str]:
    """What a tokenizer finds in the pieces of a guarded text."""
    found = re.compile("|".join(re.escape(literal) for literal in LITERALS if len(literal) > 1))
    return [match for piece in pieces(text) for match in found.findall(piece)]


@pytest.mark.parametrize(
    "text",
    [
        "<image> and </s><s>", "<|im_end|><s>", "aaaa", "a<s>a", "<<<s>", f"<{GUARD}s>", "[INST][INST", "plain < text",
        "<im", "x", "", "<image", GUARD, "\n<s>\n",
    ],
)  # fmt: skip
def test_guarded_text_has_no_special_token(text: str) -> None:
    """Neither overlapping ones, nor ones within others, nor such as the text's own guards hide; it says the same."""
    guarded = Guard(LITERALS).text(text)
    assert tokens_of(guarded) == []
    assert unguarded(guarded) == text.replace(GUARD, "")


def test_text_without_literals_is_not_touched() -> None:
    """A guard changes how text is tokenized, so it stands only where it must."""
    text = "If a < b, </b> and <imag> or [INS T]: |im_end|"
    assert Guard(LITERALS).text(text) == text
    assert Guard([]).text("<s>") == "<s>"


def test_borders_between_texts() -> None:
    """A literal cannot be put together from neighbouring texts of any roles."""
    guards = Guards(others=Guard(["</s>", "<image>"]), operator=Guard(["<image>"]))
    for roles, texts, guarded in (
        (("user", "user"), ("<ima", "ge>"), True),
        (("system", "system"), ("<ima", "ge>"), True),
        (("system", "system"), ("</", "s>"), False),
        (("system", "user"), ("</", "s>"), True),
        (("user", "user"), ("<", "i"), True),
        (("user", "user"), ("<", "b"), False),
        (("user", "user"), ("", "</s"), False),
    ):
        messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
        first, _ = normalize_messages(messages, guards)
        assert (GUARD in first["content"][0]["text"]) == guarded, (roles, texts)


def test_whose_text_is_guarded_against_what() -> None:
    """Placeholders in any text; other special tokens in users', tools' and the assistant's. Keys count, too."""
    guards = Guards(others=Guard(["</s>", "<image>"]), operator=Guard(["<image>"]))
    for role in ("system", "developer", "user", "assistant", "tool"):
        (message,) = normalize_messages(
            [{"role": role, "content": "</s> <image>", "extra": [{"</s>": "<image>"}]}], guards
        )
        eos = "</s>" if role in ("system", "developer") else f"<{GUARD}/s>"
        assert message["content"][0]["text"] == f"{eos} <{GUARD}image>"
        assert message["extra"] == [{eos: f"<{GUARD}image>"}]


def test_arguments_of_tool_calls_are_guarded_after_they_are_read() -> None:
    """A literal may be hidden in JSON's escapes."""
    guards = Guards(others=Guard(["</s>"]), operator=Guard([]))
    calls = [
        {"function": {"name": "f", "arguments": text}} for text in ('{"a": "\\u003c/s>"}', "</s>", "[1]", "1" * 5000)
    ]
    (message,) = normalize_messages([{"role": "assistant", "content": None, "tool_calls": calls}], guards)
    got = [call["function"]["arguments"] for call in message["tool_calls"]]
    assert got == [{"a": f"<{GUARD}/s>"}, f"<{GUARD}/s>", "[1]", "1" * 5000]


def test_media_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `data:` URL of any length is passed on as it is; text is searched once, for what all literals begin with."""
    guards = Guards(others=Guard([f"<|reserved_{i}|>" for i in range(1000)]), operator=Guard([]))
    assert guards.others._pattern is not None
    assert guards.others._pattern.pattern.count("reserved_") == 1
    url, text = "data:image/png;base64," + "<|reserved_" * 20_000, "<|reserved_" * 20_000
    searched: list[str] = []
    search = Guard.text
    monkeypatch.setattr(Guard, "text", lambda guard, given: (searched.append(given), search(guard, given))[1])
    (message,) = normalize_messages(
        [user({"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text})], guards
    )
    assert sum(map(len, searched)) < len(text) + 1000
    assert message["content"][0]["image"] is url
    assert message["content"][1]["text"] == text


# --- prompts ----------------------------------------------------------------------------------------------------------

PUBLISHED = """\
{% set audio_count = namespace(value=0) %}{% for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}<|im_end|>
{% else %}{% for content in message['content'] %}\
{% if 'audio' in content or 'audio_url' in content{also} %}{% set audio_count.value = audio_count.value + 1 %}\
Audio {{ audio_count.value }}: <|audio_bos|><|AUDIO|><|audio_eos|>
{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>
{% endif %}{% endfor %}"""


class NoTokens:
    """A tokenizer without special tokens."""

    special_tokens_map: dict[str, str] = {}  # noqa: RUF012


@pytest.mark.parametrize("also", ["", " or content['type'] == 'audio'"])
def test_templates_find_media_by_key_or_by_type(also: str) -> None:
    """Published templates do either; both place every item, and neither sees its samples."""
    audio = {"type": "audio", "audio": b"a"}, {"type": "audio", "audio": b"b"}
    messages = normalize_messages([user(audio[0], "and", audio[1])], OPEN)
    templates = TemplateRenderer()
    chat = ChatRenderer(NoTokens(), templates).render(
        messages, PUBLISHED.replace("{also}", also), lambda *_: None, add_generation_prompt=False
    )
    templates.close()
    assert isinstance(chat.prompt, str)
    placed = "<|audio_bos|><|AUDIO|><|audio_eos|>"
    assert chat.prompt.split("user\n")[1].startswith(f"Audio 1: {placed}\nandAudio 2: {placed}\n<|im_end|>")
    assert chat.mm_data == {"audio": [b"a", b"b"]}


def test_joined_without_a_template() -> None:
    """Plain lines; they end with the assistant's name only where the model's turn begins."""
    messages = normalize_messages([{"role": "system", "content": "Be brief."}, user("Hi")], OPEN)
    assert join_chat(messages, lambda *_: None, add_generation_prompt=True).prompt == "Be brief.\nUSER: Hi\nASSISTANT:"
    assert join_chat(messages, lambda *_: None, add_generation_prompt=False).prompt == "Be brief.\nUSER: Hi"


def test_texts_that_are_tokenized_apart() -> None:
    """A family's own prompt has boundaries beside the guards; text of messages has none, and the prompt loses them."""
    (message,) = normalize_messages([user(f"a{TEXT_BOUNDARY}b</s>")], Guards(Guard(["</s>"]), Guard([])))
    prompt = f"YOU:{TEXT_BOUNDARY}{message['content'][0]['text']}"
    assert pieces(prompt) == ["YOU:", "ab<", "/s>"]
    assert unguarded(prompt) == "YOU:ab</s>"


def test_continuing_without_a_template() -> None:
    """The prompt ends where the last message does."""
    messages = normalize_messages([user("Hi"), {"role": "assistant", "content": "Well, "}], OPEN)
    marked = mark_end(messages)
    chat = join_chat(marked, lambda *_: None, add_generation_prompt=False)
    assert cut_at_end(chat, messages).prompt == "USER: Hi\nASSISTANT: Well, "
    for prompt in ("USER: Hi\nASSISTANT: ...", [1, 2]):
        with pytest.raises(PromptError, match="not in the prompt"):
            cut_at_end(ChatPrompt(prompt), messages)
    with pytest.raises(PromptError, match=r"the last message .* continue_final_message"):
        mark_end(normalize_messages([user("Hi"), {"role": "assistant", "content": None}], OPEN))
