"""Messages of Python code and of clients are read by one parser, which the tables of fields make."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessage

from corellm.errors import MediaError, PromptError
from corellm.multimodal.chat.continuing import is_begun
from corellm.multimodal.chat.fields import MESSAGES, OUTPUT_PARTS, PARTS, ROLES
from corellm.multimodal.chat.reading import Part, read_messages

URL = "data:image/png;base64,AAAA"


def read(part: Any, role: str = "user", **options: Any) -> Part:
    """The one part of a message."""
    (message,) = read_messages([{"role": role, "content": [part]}], **options)
    (found,) = message["content"]
    assert isinstance(found, Part)
    return found


@pytest.mark.parametrize("from_client", [False, True])
@pytest.mark.parametrize("kind", PARTS)
def test_every_type_under_every_key(kind: str, *, from_client: bool) -> None:
    """Text or a name, alike for both; ignored fields change nothing; unknown ones are refused."""
    part = PARTS[kind]
    for key in part.keys:
        value: Any = {"file": {"file_data": URL}, "source": {"type": "url", "url": URL}}.get(key, URL)
        given = {"type": kind, key: value, **dict.fromkeys(part.table.ignored, object())}
        found = read(given, from_client=from_client)
        assert (found.value, found.where) == (URL, "messages[0].content[0]")
        assert found.modality == ("image" if part.modality == "file" else part.modality)
        assert found.are_embeddings == kind.endswith("_embeds")
        with pytest.raises(PromptError) as caught:
            read({**given, "foo": 1}, from_client=from_client)
        assert caught.value.param == "messages[0].content[0].foo"
        assert asdict(read({**given, "foo": 1}, "assistant", from_client=from_client)) == asdict(found)


@pytest.mark.parametrize(
    "part",
    [
        {"image": "a.png", "text": None},
        {"image": None, "uuid": "a"},
        {"video": "a.mp4"},
        {"audio": "a.wav"},
        {"text": "a"},
        "a",
    ],
)
def test_plain_parts(part: Any) -> None:
    """Need no type, in Python as over HTTP."""
    assert read(part) == read(part, from_client=True)


def test_media_have_names_over_http() -> None:
    """Python code gives them in any form."""
    for media in (b"bytes", [[1.0]], {"frames": []}, ("frames", {"fps": 2})):
        assert read({"image": media}).value == read({"image_url": {"url": media}}).value == media
        with pytest.raises(PromptError):
            read({"image": media}, from_client=True)


def test_a_reply_of_openais_client() -> None:
    """Is a message as it is: the fields that it lacks are None."""
    reply = ChatCompletionMessage(role="assistant", content="a circle")
    (message,) = read_messages([reply])
    assert message == {"role": "assistant", "content": [Part("messages[0].content[0]", "text", "a circle")]}
    with pytest.raises(PromptError):
        read_messages([reply], from_client=True)


@pytest.mark.parametrize("role", ROLES)
def test_fields_of_messages(role: str) -> None:
    """Ignored ones are dropped, refused ones refused, unknown ones are a template's in Python, and else an error."""
    table, base = MESSAGES[role], {"role": role, "content": "x", "tool_call_id": "call_1"}
    if role != "tool":
        del base["tool_call_id"]
    (message,) = read_messages([{**base, **dict.fromkeys(table.ignored, object())}], from_client=True)
    assert message.keys() == base.keys()
    for name in table.refused:
        with pytest.raises(PromptError) as caught:
            read_messages([{**base, name: "something else"}])
        assert caught.value.param == f"messages[0].{name}"
    assert read_messages([{**base, "mine": 1}])[0]["mine"] == 1
    if role == "assistant":
        assert "mine" not in read_messages([{**base, "mine": 1}], from_client=True)[0]
        return
    with pytest.raises(PromptError) as caught:
        read_messages([{**base, "mine": 1}], from_client=True)
    assert caught.value.param == "messages[0].mine"


def test_what_is_only_output_is_dropped() -> None:
    """Parts of an assistant's message that are only output are dropped."""
    parts = [{"type": kind, kind: "x"} for kind in sorted(OUTPUT_PARTS)]
    (message,) = read_messages([{"role": "assistant", "content": [*parts, "y"]}], from_client=True)
    assert [part.value for part in message["content"]] == ["y"]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "text": "x", "image_url": {"url": URL}},
        {"type": "thinking", "thinking": "x", "image_url": {"url": URL}},
        {"type": "image_url", "image_url": {"url": URL}, "input_audio": {"data": "AAAA", "format": "wav"}},
    ],
)
def test_no_media_are_dropped_with_output(part: Any) -> None:
    """Media beside an assistant's text or thought are no output, and would be lost."""
    with pytest.raises(PromptError) as caught:
        read(part, "assistant", from_client=True)
    assert caught.value.param == "messages[0].content[0]"


def test_blocks_of_tools() -> None:
    """Those of Anthropic's messages are chat's calls and messages of tools, in places of their own."""
    asked = {"role": "user", "content": "How warm is it?"}
    call = {"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": "Rome"}, "caller": {"type": "direct"}}
    given = [
        asked,
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, "I look.", call]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "call_1", "content": [{"text": "20"}], "is_error": False},
            {"type": "tool_result", "tool_use_id": "call_2"},
            {"type": "text", "text": "And there?"},
        ]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_3", "content": "x"}]},
    ]  # fmt: skip
    chats = [
        asked,
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": {"at": "Rome"}}}
        ]},
        {"role": "tool", "tool_call_id": "call_1", "content": "20"},
        {"role": "tool", "tool_call_id": "call_2", "content": ""},
        {"role": "user", "content": "And there?"},
        {"role": "tool", "tool_call_id": "call_3", "content": "x"},
    ]  # fmt: skip
    read_given = read_messages(given, from_client=True)
    for message, other in zip(read_given, read_messages(chats, from_client=True), strict=True):
        assert {**message, "content": [part.value for part in message["content"]]} == {
            **other, "content": [part.value for part in other["content"]]
        }  # fmt: skip
    places = [part.where for message in read_given for part in message["content"]]
    assert places == [
        "messages[0].content[0]", "messages[1].content[1]", "messages[2].content[0].content[0]",
        "messages[2].content[1].content[0]", "messages[2].content[2]", "messages[3].content[0].content[0]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("role", "block", "place"),
    [
        ("assistant", {"type": "tool_use", "name": "f", "input": {}}, ".id"),
        ("assistant", {"type": "tool_use", "id": "a", "name": 3, "input": {}}, ".name"),
        ("assistant", {"type": "tool_use", "id": "a", "name": "f", "input": "{}"}, ".input"),
        ("user", {"type": "tool_use", "id": "a", "name": "f", "input": {}}, ""),
        ("assistant", {"type": "tool_result", "tool_use_id": "a"}, ""),
        ("user", {"type": "tool_result", "tool_use_id": 1}, ".tool_use_id"),
        ("user", {"type": "tool_result", "tool_use_id": "a", "content": [{"image": None}]}, ".content[0]"),
        ("user", {"type": "tool_result", "tool_use_id": "a", "content": {}}, ".content"),
        ("user", {"type": "tool_result", "tool_use_id": "a", "foo": 1}, ".foo"),
    ],
)
def test_wrong_blocks_of_tools(role: str, block: Any, place: str) -> None:
    """An error names the block's field, or the block where another role has it."""
    with pytest.raises((PromptError, MediaError)) as caught:
        read_messages([{"role": role, "content": ["x", block]}], from_client=True)
    assert caught.value.param == f"messages[0].content[1]{place}"


def test_a_prefix_is_continued() -> None:
    """The last message is continued if it is the assistant's and says so by `prefix`, which no earlier one may."""
    begun = {"role": "assistant", "content": "There are"}
    assert is_begun(read_messages([{**begun, "prefix": True}]))
    assert not is_begun(read_messages([{**begun, "prefix": False}]))
    assert not is_begun(read_messages([begun]))
    assert not is_begun(read_messages([{"role": "user", "content": "x", "prefix": True}]))
    with pytest.raises(PromptError) as caught:
        read_messages([{**begun, "prefix": True}, begun])
    assert caught.value.param == "messages[0].prefix"


def test_media_that_are_missing() -> None:
    """Are a part's fault, unless it has a uuid; embeddings are known by no uuid."""
    assert read({"type": "image", "uuid": "mine"}).uuid == "mine"
    for part in ({"type": "image"}, {"type": "image_embeds", "uuid": "mine"}):
        with pytest.raises(MediaError) as caught:
            read(part)
        assert (caught.value.param, caught.value.modality) == ("messages[0].content[0]", "image")
