"""`/v1/messages` through Anthropic's own client and on the wire: types, events, equality with chat, errors."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from corellm import AsyncLLM
from extensions.server.tests.conftest import MODEL, Running, chat, data_url, idle, image_part, in_engine, serving, user
from extensions.server.tests.test_promises import JSON, NOT_JSON, PARTS, assert_serves
from tests.fixtures import wait_until

PATH = "/v1/messages"
COUNT = PATH + "/count_tokens"
CHAT = "/v1/chat/completions"
BEGINNING = ["message_start", "content_block_start", "ping"]
ENDING = ["content_block_stop", "message_delta", "message_stop"]
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
GREEDY: Any = {"temperature": 0, "ignore_eos": True}


def ask(messages: Any, **fields: Any) -> dict[str, Any]:
    """A greedy request of few tokens."""
    return {"model": MODEL, "messages": messages, "max_tokens": 6, "temperature": 0, **fields}


def image(seed: int, **fields: Any) -> dict[str, Any]:
    """An image as the Messages API has it."""
    media_type, _, data = data_url(seed).removeprefix("data:").partition(";base64,")
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}, **fields}


def text(content: str, **fields: Any) -> dict[str, Any]:
    """A block of text."""
    return {"type": "text", "text": content, **fields}


def client_of(running: Running, **options: Any) -> anthropic.Anthropic:
    """Anthropic's own client."""
    headers = {"Connection": "close"}
    return anthropic.Anthropic(
        **{"base_url": running.url, "api_key": "unused", "max_retries": 0, "default_headers": headers, **options}
    )


def told(response: httpx.Response, status: int, kind: str = "invalid_request_error") -> str:
    """The message of an error, which must have Anthropic's shape."""
    assert response.status_code == status, response.text
    body = response.json()
    assert body == {
        "type": "error",
        "error": {"type": kind, "message": body["error"]["message"]},
        "request_id": response.headers["x-request-id"],
    }
    assert response.headers["request-id"] == body["request_id"]
    assert 0 < len(body["error"]["message"]) <= 1000
    return str(body["error"]["message"])


def events_of(body: str) -> list[dict[str, Any]]:
    """The events of a stream, each of which Anthropic's types must take, under its own name."""
    *blocks, rest = body.split("\n\n")
    assert rest == ""
    events = []
    for block in blocks:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] != "ping":
            EVENT.validate_python(event, strict=True)
        events.append(event)
    return events


# --- what comes out -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_image", [False, True])
def test_a_message_is_chats_completion(running: Running, *, with_image: bool) -> None:
    """The text and tokens that chat has for the same conversation, in Anthropic's type, whole and streamed."""
    seen, shown = ([image_part(1)], [image(1)]) if with_image else ([], [])
    later = [{"role": "assistant", "content": "A star."}, {"role": "user", "content": "Which colour?"}]
    messages = [{"role": "system", "content": "be brief"}, *user(*seen, text("what is it?")), *later]
    want = running.post(CHAT, chat(messages, ignore_eos=True)).json()
    arguments: Any = {
        "model": MODEL, "max_tokens": 6, "system": "be brief", "extra_body": GREEDY,
        "messages": [{"role": "user", "content": [*shown, text("what is it?")]}, *later],
    }  # fmt: skip
    with client_of(running) as client:
        got = client.messages.create(**arguments, metadata={"user_id": "a"}, service_tier="auto")
        with client.messages.stream(**arguments) as stream:
            streamed = "".join(stream.text_stream)
            final = stream.get_final_message()
        beta = client.beta.messages.create(**arguments, betas=["a-beta-2026-01-01"])
    Message.model_validate(got.to_dict(), strict=True)
    (block,) = got.content
    assert block.type == "text"
    assert block.text == want["choices"][0]["message"]["content"] == streamed != ""
    assert (got.usage.input_tokens, got.usage.output_tokens) == (want["usage"]["prompt_tokens"], 6)
    assert (got.role, got.model, got.stop_reason, got.stop_sequence) == ("assistant", MODEL, "max_tokens", None)
    assert got.id.startswith("msg_")
    assert 'route="/v1/messages"' in running.get("/metrics").text
    assert got._request_id
    for name in ("content", "model", "role", "stop_reason", "stop_sequence", "usage"):
        assert final.to_dict()[name] == got.to_dict()[name]
    assert beta.content[0].to_dict() == block.to_dict()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"ignore_eos": True}, "max_tokens"),
        ({"stop_sequences": ["e", "a", "o"], "max_tokens": 99}, "stop_sequence"),
        ({"temperature": 1.0, "seed": 5, "top_k": 9, "top_p": 0.9}, "max_tokens"),
    ],
)
def test_a_stream_reassembles_to_the_message(running: Running, fields: dict[str, Any], reason: str) -> None:
    """Anthropic's events in Anthropic's order; deltas make the text, and the last ones have reason and usage."""
    body = ask([{"role": "user", "content": [image(2), "count to ten"]}], **fields)
    whole = running.post(PATH, body).json()
    streamed = running.post(PATH, {**body, "stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    events = events_of(streamed.text)
    kinds = [event["type"] for event in events]
    assert kinds[:3] == BEGINNING
    assert kinds[-3:] == ENDING
    assert {*kinds[3:-3]} == {"content_block_delta"}
    begun, ended = events[0]["message"], events[-2]
    assert (begun["content"], begun["stop_reason"], begun["usage"]["output_tokens"]) == ([], None, 0)
    assert "".join(event["delta"]["text"] for event in events[3:-3]) == whole["content"][0]["text"] != ""
    assert ended["usage"] == whole["usage"]
    assert begun["usage"] == {**whole["usage"], "output_tokens": 0}
    assert ended["delta"] == {name: whole[name] for name in ("stop_reason", "stop_sequence")}
    assert whole["stop_reason"] == reason


def test_stop_sequences(running: Running) -> None:
    """The one that was found is named, and is not in the text."""
    body = ask(user("go on"), max_tokens=30, ignore_eos=True)
    full = running.post(PATH, body).json()["content"][0]["text"]
    found = full[len(full) // 2 :][:3]
    got = running.post(PATH, {**body, "stop_sequences": ["absent from it", found]}).json()
    assert (got["stop_reason"], got["stop_sequence"]) == ("stop_sequence", found)
    assert got["content"][0]["text"] == full[: full.index(found)]
    assert got["usage"]["output_tokens"] < 30


def test_a_turn_that_ends(running: Running) -> None:
    """By a token that ends it, which is no stop sequence."""
    body = ask(user("go on"), return_token_ids=True)
    del body["max_tokens"]
    first = running.post(CHAT, {**body, "max_tokens": 1}).json()["choices"][0]["token_ids"]
    del body["return_token_ids"]
    got = running.post(PATH, {**body, "max_tokens": 9, "stop_token_ids": first}).json()
    assert (got["stop_reason"], got["stop_sequence"], got["usage"]["output_tokens"]) == ("end_turn", None, 1)


def test_the_model_is_full(running: Running, llm: AsyncLLM) -> None:
    """`max_tokens` may be more than the model has room for: the output is as long as it can be, and says so."""
    messages = user("a " * (llm.max_model_len - 40))
    length = running.post(COUNT, {"model": MODEL, "messages": messages}).json()["input_tokens"]
    assert llm.max_model_len - 40 < length < llm.max_model_len
    got = running.post(PATH, ask(messages, max_tokens=32_000, ignore_eos=True)).json()
    assert got["stop_reason"] == "model_context_window_exceeded"
    assert got["usage"]["output_tokens"] == llm.max_model_len - length
    longer = user("a " * llm.max_model_len)
    assert f"the {llm.max_model_len} that" in told(running.post(PATH, ask(longer)), 400)


def test_a_last_message_of_the_assistant_is_continued(running: Running) -> None:
    """As chat does by `continue_final_message`; the output has not the beginning. It can be told not to."""
    begun = [*user(image(3), "What is it?"), {"role": "assistant", "content": [text("There are")]}]
    got = running.post(PATH, ask(begun, ignore_eos=True)).json()
    chats = [*user(image_part(3), "What is it?"), {"role": "assistant", "content": "There are"}]
    continued = chat(chats, ignore_eos=True, continue_final_message=True, add_generation_prompt=False)
    want = running.post(CHAT, continued).json()
    assert got["content"][0]["text"] == want["choices"][0]["message"]["content"]
    assert got["usage"]["input_tokens"] == want["usage"]["prompt_tokens"]
    other = running.post(PATH, ask(begun, ignore_eos=True, continue_final_message=False)).json()
    want = running.post(CHAT, chat(chats, ignore_eos=True)).json()
    assert other["content"][0]["text"] == want["choices"][0]["message"]["content"] != got["content"][0]["text"]
    assert "no text" in told(running.post(PATH, ask([*user("x"), {"role": "assistant", "content": ""}])), 400)


BODIES: dict[str, dict[str, Any]] = {
    "text": {"messages": user("hello")},
    "a system message": {"messages": user("hello"), "system": [text("be brief"), text("be kind")]},
    "images": {"messages": user(image(4), "and", image(5), "differ how?"), "system": "be brief"},
    "a beginning": {"messages": [*user(image(6)), {"role": "assistant", "content": "There are"}]},
}


def test_tokens_are_counted(running: Running) -> None:
    """As many as the same body's message has, however much of it is cached; the client's method has the same."""
    counts = {}
    for name, fields in BODIES.items():
        body = ask(**fields)
        counts[name] = running.post(COUNT, body).json()["input_tokens"]
        for _ in range(2):
            assert running.post(PATH, body).json()["usage"]["input_tokens"] == counts[name]
        with client_of(running) as client:
            assert client.messages.count_tokens(model=MODEL, **fields).input_tokens == counts[name]
    assert len({*counts.values()}) == len(BODIES)
    for nothing in ("", []):
        body = {"model": MODEL, "system": nothing, **BODIES["text"]}
        assert running.post(COUNT, body).json()["input_tokens"] == counts["text"]


def test_what_was_cached_is_told_where_asked_for(running: Running) -> None:
    """`cache_control`, of a block or of all, has Anthropic's usage: what was read from the cache is no input token."""
    marked = {"cache_control": {"type": "ephemeral"}}
    messages = user(text("a long beginning " * 9), image(7))
    plain = running.post(PATH, ask(messages)).json()["usage"]
    assert plain["cache_read_input_tokens"] == 0
    for fields in ({"messages": user(text("a long beginning " * 9), image(7, **marked))}, marked):
        usage = running.post(PATH, {**ask(messages), **fields}).json()["usage"]
        assert usage["cache_read_input_tokens"] > 0
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == plain["input_tokens"]


def test_a_message_can_be_sent_back(running: Running) -> None:
    """Its content is the next request's history, as the client has it."""
    with client_of(running) as client:
        arguments: Any = {"model": MODEL, "max_tokens": 6, "extra_body": GREEDY}
        first = client.messages.create(messages=user("hello"), **arguments)  # type: ignore[arg-type]
        history: Any = [*user("hello"), first.to_param(), *user("and then?")]
        second = client.messages.create(messages=history, **arguments)
    assert first.content[0].type == "text"
    history[1] = {"role": "assistant", "content": first.content[0].text}
    want = running.post(CHAT, chat(history, ignore_eos=True)).json()
    assert second.usage.input_tokens == want["usage"]["prompt_tokens"]
    assert second.content[0].to_dict()["text"] == want["choices"][0]["message"]["content"]


def test_the_asynchronous_client(running: Running) -> None:
    """Gets the same, several at once."""

    async def main() -> None:
        arguments: Any = {"model": MODEL, "max_tokens": 6, "messages": user("hello"), "extra_body": GREEDY}
        async with anthropic.AsyncAnthropic(base_url=running.url, api_key="x", max_retries=0) as client:
            wholes = await asyncio.gather(*(client.messages.create(**arguments) for _ in range(4)))
            async with client.messages.stream(**arguments) as stream:
                texts = {"".join([part async for part in stream.text_stream])}
        texts |= {str(whole.content[0].to_dict()["text"]) for whole in wholes}
        assert len(texts) == 1

    asyncio.run(main())


# --- errors ---------------------------------------------------------------------------------------------------------


def test_errors_of_the_clients_own(running: Running, llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each status raises the exception that Anthropic's client has for it, with our message."""
    fine: Any = {"model": MODEL, "max_tokens": 3, "messages": user("x")}
    with client_of(running) as client:
        with pytest.raises(anthropic.BadRequestError, match="template does not take tools"):
            client.messages.create(**fine, tools=[{"name": "f", "input_schema": {"type": "object"}}])
        with pytest.raises(anthropic.NotFoundError, match="no model 'other'") as caught:
            client.messages.create(**{**fine, "model": "other"})
        assert caught.value.type == "not_found_error"
        assert caught.value.request_id
        with pytest.raises(anthropic.NotFoundError, match="openapi"):
            client.messages.batches.list()
    with (
        client_of(running, base_url=running.url + "/v1") as client,
        pytest.raises(anthropic.NotFoundError, match="adds /v1"),
    ):
        client.messages.create(**fine)
    with serving(llm, api_key=["a-key"], max_body_bytes=1000) as other:
        with client_of(other) as client, pytest.raises(anthropic.AuthenticationError, match="x-api-key"):
            client.messages.create(**fine)
        with client_of(other, api_key="a-key") as client:
            assert client.messages.create(**fine).usage.output_tokens
            with pytest.raises(anthropic.APIStatusError, match="1000 bytes") as caught:
                client.messages.create(**{**fine, "messages": user("x" * 1000)})
            assert (caught.value.status_code, caught.value.body["error"]["type"]) == (413, "request_too_large")  # type: ignore[index, call-overload]
            monkeypatch.setattr(other.service.preparation, "conversation", None)
            with pytest.raises(anthropic.InternalServerError, match="internal error") as caught:
                client.messages.create(**fine)
            assert caught.value.type == "api_error"


def test_keys(llm: AsyncLLM) -> None:
    """`x-api-key` is as good as `Authorization`, on every route; one of both must be right."""
    with serving(llm, api_key=["first", "second"]) as running:
        for headers in (
            {"x-api-key": "second"}, {"Authorization": "Bearer second"},
            {"x-api-key": "wrong", "Authorization": "Bearer second"},
            {"x-api-key": "second", "Authorization": "Basic wrong"},
        ):  # fmt: skip
            assert running.post(PATH, ask(user("x")), headers=headers).status_code == 200
            assert running.get("/v1/models", headers=headers).status_code == 200
        for headers, why in (
            ({}, "missing"), ({"x-api-key": ""}, "wrong"), ({"x-api-key": "secon"}, "wrong"),
            ({"x-api-key": "Bearer second"}, "wrong"), ({"Authorization": "second"}, "wrong"),
        ):  # fmt: skip
            assert why in told(running.post(PATH, ask(user("x")), headers=headers), 401, "authentication_error")


def test_errors_of_the_gate(running: Running, llm: AsyncLLM) -> None:
    """Have the shape, whether there is a route, a method, a body, or room."""
    for path in (PATH, COUNT):
        for body in NOT_JSON:
            assert told(running.post(path, content=body, headers=JSON), 400).startswith("invalid JSON")
        assert "application/json" in told(
            running.post(path, content=b"{}", headers={"Content-Type": "text/plain"}), 415
        )
        assert "takes POST only" in told(running.get(path), 405)
    told(running.post(PATH + "/batches", {}), 404, "not_found_error")
    assert "error" in running.post("/v1/messagesx", {}).json()
    assert "type" not in running.post("/v1/messagesx", {}).json()
    body = json.dumps(ask(user("x")) | {"metadata": [[]] * 1000})
    with serving(llm, max_held_bytes=16 * len(body)) as small:
        response = small.post(PATH, content=body, headers=JSON)
        told(response, 503, "overloaded_error")
        assert response.headers["retry-after"]


FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens is required"), ({"model": None}, "model is required"),
    ({"messages": None}, "messages is required"), ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"), ({"max_tokens": 1.5}, "max_tokens"), ({"max_tokens": True}, "max_tokens"),
    ({"model": 3}, "model"), ({"messages": []}, "messages"), ({"messages": "x"}, "messages"),
    ({"messages": [1]}, "messages[0]"), ({"messages": {}}, "messages"), ({"system": 3}, "system"),
    ({"system": [1]}, "system[0]"), ({"system": [text("x"), text("y", z=1)]}, "system[1]"),
    ({"system": [image(1)]}, "system[0]: must be text"), ({"system": [{"type": "text"}]}, "system[0]"),
    ({"system": [{"type": "thinking"}]}, "system[0]"), ({"system": {}}, "system"),
    ({"stop_sequences": "x"}, "stop_sequences"), ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"stop_sequences": ["x" * 2000]}, "stop_sequences[0]"), ({"stop_sequences": ["x", 1]}, "stop_sequences[1]"),
    ({"stop_sequences": ["x"] * 5}, "stop_sequences"), ({"stop": ["x"]}, "'stop'"), ({"n": 2}, "'n'"),
    ({"temperature": 2.1}, "temperature"), ({"temperature": "x"}, "temperature"), ({"top_p": 0}, "top_p"),
    ({"top_k": -2}, "top_k"), ({"stream": "x"}, "stream"), ({"cache_control": 1}, "cache_control"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"), ({"tools": {}}, "tools"),
    ({"tools": [{"name": "f", "input_schema": {}}]}, "tools: this model's chat template"),
    ({"mcp_servers": [1]}, "mcp_servers"),
    ({"thinking": {"type": "on"}}, "thinking"), ({"thinking": {"type": "enabled", "x": 1}}, "thinking.x"),
    ({"container": "c"}, "container"), ({"output_config": {"format": {}}}, "output_config.format"),
    ({"output_config": {"x": 1}}, "output_config.x"), ({"nonsense": 1}, "'nonsense'"),
    ({"chat_template": "x"}, "chat_template"), ({"mm_processor_kwargs": {"size": 9}}, "mm_processor_kwargs"),
    ({"messages": [{"role": "root", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
    ({"messages": [*user("x"), *user("y"), {"role": "user", "content": "x", "z": 1}]}, "messages[2].z"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"), ({"messages": user({})}, "messages[0].content[0]"),
    ({"messages": user("x"), "system": "y", "top_k": "z"}, "top_k"),
]  # fmt: skip
SOURCES: list[tuple[Any, str]] = [
    (3, "source"), ("x", "source"), ([], "source"), ({}, "source.type"), ({"type": ["base64"]}, "source.type"),
    ({"type": "file", "file_id": "f"}, "no stored files"), ({"type": "url"}, "source.url"),
    ({"type": "url", "url": 3}, "source.url"), ({"type": "url", "url": ""}, "source.url"),
    ({"type": "url", "url": "http://127.0.0.1/x.png"}, "URLs"),
    ({"type": "base64", "data": "AAAA"}, "source.media_type"),
    ({"type": "base64", "media_type": "image/png"}, "source.data"),
    ({"type": "base64", "media_type": "image/png", "data": [1]}, "source.data"),
    ({"type": "base64", "media_type": "audio/wav", "data": "AAAA"}, "source.media_type"),
    ({"type": "base64", "media_type": "image/png,x;", "data": "AAAA"}, "source.media_type"),
    ({"type": "base64", "media_type": "image/png", "data": "AAAA", "x": 1}, "source.x"),
    ({"type": "base64", "media_type": "image/png", "data": "AAAA", "url": "x"}, "source.url"),
    ({"type": "base64", "media_type": "image/png", "data": "AAAA"}, "image"),
    ({"type": "base64", "media_type": "image/png", "data": "not base64"}, "base64"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_fields(running: Running, *, stream: bool) -> None:
    """400 that names the place in its message, before a stream begins."""
    for fields, place in FIELDS:
        body = {**ask(user("x")), **({"stream": True} if stream else {}), **fields}
        assert place in told(running.post(PATH, body), 400), fields
    assert_serves(running)
    wait_until(lambda: idle(running))


def test_blocks(running: Running) -> None:
    """400 with the whole path of the block, whether it is malformed or cannot be decoded."""
    tools: list[tuple[Any, str]] = [
        ({"type": "tool_result"}, "content[1].tool_use_id"), ({"type": "tool_use", "id": "a"}, "'tool_use'"),
        ({"type": "tool_result", "tool_use_id": "a", "x": 1}, "'x'"),
        ({"type": "tool_result", "tool_use_id": "a", "content": 3}, "content[1].content"),
        ({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "x"}]}, "content[1].content[0]"),
        ({"type": "document", "source": {}}, "'document'"),
    ]  # fmt: skip
    sources = [({"type": "image", "source": source}, why) for source, why in SOURCES]
    for block, why in [*PARTS, *sources, *tools]:
        messages = [*user("fine"), {"role": "assistant", "content": "ok"}, *user("see", block)]
        message = told(running.post(PATH, ask(messages, system="be brief")), 400)
        assert "messages[2].content[1]" in message, block
        assert why in message, block
    assert_serves(running)


def test_hostile_bodies(running: Running) -> None:
    """Nesting and numbers of anything are refused in the shape."""
    nested: Any = "x"
    for _ in range(30):
        nested = {"type": "tool_result", "tool_use_id": "a", "content": [nested]}
    many = 200_000
    for fields in (
        {"messages": user(nested)}, {"messages": [{"role": "user", "content": "x"}] * 2000},
        {"messages": user(*["x"] * 3000)}, {"system": ["x"] * many}, {"stop_sequences": ["x"] * many},
        {"stop_sequences": [None] * many}, {"messages": [None] * many}, {"metadata": [[]] * many},
        {"messages": user({"type": "tool_result", "tool_use_id": "a", "content": ["x"] * 3000})},
        {"cache_control": {str(key): 0 for key in range(20_000)}}, {"model": "m" * 10**6},
    ):  # fmt: skip
        for path in (PATH, COUNT):
            if path == COUNT and "stop_sequences" in fields and fields["stop_sequences"][0] is not None:
                continue  # nothing is generated
            response = running.post(path, {**ask(user("x")), **fields})
            told(response, *((404, "not_found_error") if "model" in fields else (400,)))
    assert_serves(running)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.recursive(
        st.none() | st.integers() | st.text() | st.sampled_from(["user", "assistant", "base64", "text", "tool_use"]),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([
            "messages", "role", "content", "type", "text", "image", "source", "data", "media_type", "url", "system",
            "tools", "thinking", "stop_sequences", "tool_use_id", "input", "cache_control", "id", "name", "stream",
        ]), inner, max_size=6),
        max_leaves=20,
    ),
    path=st.sampled_from([PATH, COUNT]),
)  # fmt: skip
def test_any_json_is_a_client_error(running: Running, body: Any, path: str) -> None:
    """Whatever JSON comes, also in a message, the status is 400 or the request is served."""
    for sent in (body, ask([{"role": "user", "content": body}]), ask([{"role": "assistant", "content": body}, body])):
        response = running.post(path, content=json.dumps(sent).encode(), headers=JSON)
        if response.status_code != 200:
            told(response, 400)


# --- clients that leave, streams that fail --------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves(running: Running, *, stream: bool) -> None:
    """Its request is aborted while the engine waits, whether a stream or a whole message was awaited."""
    body = ask(user("go on"), max_tokens=900, ignore_eos=True, stream=stream)
    stall = threading.Event()
    with httpx.Client(base_url=running.url, timeout=httpx.Timeout(60, read=60 if stream else 1)) as client:
        if stream:
            with client.stream("POST", PATH, json=body) as response:
                assert next(response.iter_lines()) == "event: message_start"
                in_engine(running.service.client, lambda _: stall.wait(600))
        else:
            in_engine(running.service.client, lambda _: stall.wait(600))
            with pytest.raises(httpx.ReadTimeout):
                client.post(PATH, json=body)
    wait_until(lambda: len(running.service.intake) == 0)
    goes_on = in_engine(running.service.client, lambda engine: engine.has_unfinished_requests())
    stall.set()
    assert goes_on.result(600) is False
    assert idle(running)


def test_a_stream_that_fails(llm: AsyncLLM) -> None:
    """Ends with an `error` event of Anthropic's shape, which its client raises."""
    arguments: Any = {"model": MODEL, "max_tokens": 900, "messages": user("go on"), "extra_body": GREEDY}
    with serving(llm) as running, client_of(running) as client:
        stall = threading.Event()
        stream = client.messages.create(**arguments, stream=True)
        assert next(iter(stream)).type == "message_start"
        in_engine(llm, lambda _: stall.wait(600))
        running.server.stop()
        with pytest.raises(anthropic.APIStatusError, match="shutting down") as caught:
            list(stream)
        stall.set()
    body: Any = caught.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "overloaded_error")
    assert body["request_id"]
