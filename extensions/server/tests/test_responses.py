"""`/v1/responses` through the official client and on the wire: types, events, inputs, equality with chat, errors."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from corellm import AsyncLLM
from extensions.server.tests.conftest import MODEL, Running, chat, data_url, idle, image_part, in_engine, serving, user
from extensions.server.tests.test_promises import PARTS, SAMPLING, assert_serves, error_of
from tests.fixtures import wait_until

PATH = "/v1/responses"
BEGINNING = ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
DONE = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
LOGPROBS: Any = ["message.output_text.logprobs"]
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ON: Any = {"ignore_eos": True}


def ask(given: Any, **fields: Any) -> dict[str, Any]:
    """A greedy request of few tokens."""
    return {"model": MODEL, "input": given, "temperature": 0, "max_output_tokens": 6, **fields}


def image(seed: int) -> dict[str, Any]:
    """An image as the Responses API has it."""
    return {"type": "input_image", "image_url": data_url(seed), "detail": "auto"}


def events_of(body: str) -> list[dict[str, Any]]:
    """The events of a stream, each of which OpenAI's types must take, under its own name and number."""
    *blocks, done, rest = body.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    events = []
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        EVENT.validate_python(event, strict=True)
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        events.append(event)
    return events


def alike(response: dict[str, Any]) -> dict[str, Any]:
    """What responses to the same request have in common: not ids and times, what was cached, and last digits."""
    kept = {name: value for name, value in response.items() if name not in ("id", "created_at", "completed_at")}
    (item,) = response["output"]
    (part,) = item["content"]
    kept["output"] = {**item, "id": "", "content": {**part, "logprobs": [one["token"] for one in part["logprobs"]]}}
    kept["usage"] = {**response["usage"], "input_tokens_details": None}
    return kept


# --- what comes out -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_image", [False, True])
def test_a_response_is_chats_completion(running: Running, *, with_image: bool) -> None:
    """The text and tokens that chat has for the same conversation, in OpenAI's type, and usage that adds up."""
    client = running.client()
    seen, shown = ([image_part(1)], [image(1)]) if with_image else ([], [])
    messages = [{"role": "system", "content": "be brief"}, *user(*seen, {"type": "text", "text": "what is it?"})]
    want = client.chat.completions.create(**chat(messages), extra_body=ON)
    given = [{"role": "user", "content": [*shown, {"type": "input_text", "text": "what is it?"}]}]
    got = client.responses.create(**ask(given, instructions="be brief", metadata={"a": "b"}), extra_body=ON)
    Response.model_validate(got.to_dict(), strict=True)
    assert got.output_text == want.choices[0].message.content
    assert want.usage is not None
    assert got.usage is not None
    assert (got.usage.input_tokens, got.usage.output_tokens) == (want.usage.prompt_tokens, 6)
    assert got.usage.total_tokens == got.usage.input_tokens + 6
    assert got.usage.input_tokens_details.cached_tokens > 0  # chat's prompt
    assert (got.model, got.instructions, got.metadata, got.temperature) == (MODEL, "be brief", {"a": "b"}, 0)
    assert (got.status, got.error, got.to_dict()["store"]) == ("incomplete", None, True)
    assert got.incomplete_details is not None
    assert got.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize(
    ("fields", "ending"),
    [
        ({"ignore_eos": True}, "response.incomplete"),
        ({"stop": ["e", "a", "o"], "max_output_tokens": 99}, "response.completed"),
        ({"temperature": 1.0, "seed": 5, "include": LOGPROBS, "top_logprobs": 2}, "response.incomplete"),
    ],
)
def test_a_stream_reassembles_to_the_response(running: Running, fields: dict[str, Any], ending: str) -> None:
    """OpenAI's events in OpenAI's order; deltas make the text and the log-probabilities, the last event has it all."""
    body = ask([{"role": "user", "content": [image(2), "count to ten"]}], **fields)
    whole = running.post(PATH, body).json()
    streamed = running.post(PATH, {**body, "stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    events = events_of(streamed.text)
    kinds = [event["type"] for event in events]
    deltas = events[len(BEGINNING) : -len(DONE) - 1]
    assert kinds[: len(BEGINNING)] == BEGINNING
    assert {event["type"] for event in deltas} == {"response.output_text.delta"}
    assert kinds[-len(DONE) - 1 :] == [*DONE, ending]
    assert alike(events[-1]["response"]) == alike(whole)
    (item,) = events[-1]["response"]["output"]
    (part,) = item["content"]
    assert "".join(event["delta"] for event in deltas) == part["text"] != ""
    assert [one for event in deltas for one in event["logprobs"]] == part["logprobs"]
    text_done, part_done, item_done = events[-len(DONE) - 1 : -1]
    assert (text_done["text"], text_done["logprobs"]) == (part["text"], part["logprobs"])
    assert part_done["part"] == part
    assert item_done["item"] == item
    assert {event["response"]["id"] for event in events if "response" in event} == {events[-1]["response"]["id"]}
    assert {event["item_id"] for event in events if "item_id" in event} == {item["id"]}


def test_log_probabilities_are_chats(running: Running) -> None:
    """With `include` only; one entry per token, as many alternatives as asked for."""
    client = running.client()
    want = client.chat.completions.create(**chat(user("hello")), logprobs=True, top_logprobs=3, extra_body=ON)
    got = client.responses.create(**ask("hello"), include=LOGPROBS, top_logprobs=3, extra_body=ON).to_dict()
    entries: Any = got["output"][0]["content"][0]["logprobs"]  # type: ignore[index]
    assert want.choices[0].logprobs is not None
    for one, other in zip(entries, want.choices[0].logprobs.content or [], strict=True):
        assert one["token"] == other.token
        assert one["logprob"] == pytest.approx(other.logprob, abs=1e-5)
        assert [top["token"] for top in one["top_logprobs"]] == [top.token for top in other.top_logprobs]
    assert len(entries) == 6
    plain = client.responses.create(**ask("hello")).to_dict()
    assert plain["output"][0]["content"][0]["logprobs"] == []  # type: ignore[index]


def test_the_clients_helpers(running: Running) -> None:
    """`responses.stream()` and streams of `create`, of both clients, end with the text that a whole response has."""
    stop: Any = {"stop": ["e", "a", "o"]}
    body = ask("hello", max_output_tokens=99)
    want = running.client().responses.create(**body, extra_body=stop).output_text
    with running.client().responses.stream(**body, extra_body=stop) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        assert stream.get_final_response().output_text == want == snapshots[-1]

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=running.url + "/v1", api_key="x", max_retries=0) as client:
            async with client.responses.stream(**body, extra_body=stop) as stream:
                assert (await stream.get_final_response()).output_text == want
            outputs = await asyncio.gather(*(client.responses.create(**body, extra_body=stop) for _ in range(5)))
            assert {output.output_text for output in outputs} == {want}
            deltas = [
                event.delta
                async for event in await client.responses.create(**body, stream=True, extra_body=stop)
                if event.type == "response.output_text.delta"
            ]
            assert "".join(deltas) == want

    asyncio.run(main())


# --- what goes in ---------------------------------------------------------------------------------------------------


def test_spellings_of_one_input(running: Running) -> None:
    """Text and parts of either API make one prompt; so do an image, and a file that is one."""
    plain: list[Any] = [
        "hello", [{"role": "user", "content": "hello"}], [{"type": "message", "role": "user", "content": ["hello"]}],
        [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}],
        [{"role": "user", "content": [{"type": "text", "text": "hello"}], "status": "completed", "id": "msg_1"}],
    ]  # fmt: skip
    url = data_url(4)
    images: list[Any] = [
        [{"role": "user", "content": [part, "what?"]}]
        for part in (
            image(4), {"type": "input_file", "file_data": url, "filename": "x.png"}, {"image": url},
            {"type": "image_url", "image_url": {"url": url}}, {**image(4), "uuid": "of responses"},
            {"type": "input_image", "uuid": "of responses", "detail": "low"},
        )
    ]  # fmt: skip
    for spellings in (plain, images):
        bodies = [running.post(PATH, ask(given)).json() for given in spellings]
        assert len({body["output"][0]["content"][0]["text"] for body in bodies}) == 1
        assert len({body["usage"]["input_tokens"] for body in bodies}) == 1


def test_a_response_can_be_sent_back(running: Running) -> None:
    """Its output, as it came or with text alone, is the next request's history, as in chat."""
    client = running.client()
    first = client.responses.create(**ask("hello"))
    plain = {"role": "assistant", "content": first.output_text}
    texts = {
        client.responses.create(**ask([*user("hello"), *given, *user("go on")])).output_text
        for given in ([item.to_dict() for item in first.output], [plain], [{**plain, "type": "message"}])
    }
    want = client.chat.completions.create(**chat([*user("hello"), plain, *user("go on")]))
    assert texts == {want.choices[0].message.content}


def test_fields_that_ask_for_nothing(running: Running) -> None:
    """What clients send by habit changes no output."""
    want = running.post(PATH, ask("hello")).json()
    got = running.post(PATH, ask(
        "hello", store=True, background=False, tools=[], tool_choice="auto", truncation="disabled", top_logprobs=0,
        text={"format": {"type": "text"}, "verbosity": "low"}, reasoning={"summary": "auto"}, user="me",
        include=["reasoning.encrypted_content"], previous_response_id=None, parallel_tool_calls=True,
        stream_options={"include_obfuscation": False},
    )).json()  # fmt: skip
    assert alike(got) == alike(want)


# --- what is refused ------------------------------------------------------------------------------------------------

FIELDS: list[tuple[dict[str, Any], str]] = [
    *((fields, param) for fields, param in SAMPLING if not fields.keys() & {"max_tokens", "stream_options"}),
    ({"input": []}, "input"), ({"input": 3}, "input"), ({"input": None}, "input"), ({"input": [1]}, "input[0]"),
    ({"instructions": 3}, "instructions"), ({"messages": user("x")}, "messages"), ({"max_tokens": 3}, "max_tokens"),
    ({"max_output_tokens": 0}, "max_output_tokens"), ({"max_output_tokens": 10**30}, "max_output_tokens"),
    ({"min_tokens": 9, "max_output_tokens": 3}, "min_tokens"), ({"top_logprobs": 2}, "top_logprobs"),
    ({"include": LOGPROBS, "top_logprobs": 21}, "top_logprobs"), ({"include": ["nonsense"]}, "include[0]"),
    ({"include": LOGPROBS, "top_logprobs": -1}, "top_logprobs"), ({"include": "x"}, "include"),
    ({"metadata": {"a": 1}}, "metadata"), ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"x": 1}}, "text.x"), ({"text": "x"}, "text"), ({"tools": [{}]}, "tools[0]"),
    ({"tool_choice": "required"}, "tool_choice"), ({"background": True, "store": False}, "background"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"), ({"conversation": "c"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"), ({"truncation": "old"}, "truncation"),
    ({"mm_processor_kwargs": {"size": 9}}, "mm_processor_kwargs"), ({"chat_template": "x"}, "chat_template"),
    ({"input": [{"type": "function_call", "name": "f"}]}, "input[0]"), ({"input": [{"type": 3}]}, "input[0]"),
    ({"input": [*user("x"), {"type": "item_reference", "id": "msg_1"}]}, "input[1]"),
    ({"input": [*user("x"), {"role": "root", "content": "x"}]}, "input[1].role"),
    ({"input": [*user("x"), {"role": "user", "content": "x", "z": 1}], "instructions": "y"}, "input[1].z"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_fields(running: Running, *, stream: bool) -> None:
    """400 with the parameter's name, before a stream begins."""
    for fields, param in FIELDS:
        body = {**ask("x"), **({"stream": True} if stream else {}), **fields}
        assert error_of(running.post(PATH, body), 400)["param"] == param, fields
    assert_serves(running)
    wait_until(lambda: idle(running))


def test_parts(running: Running) -> None:
    """400 that names the part by its item, whether it is malformed in either API or cannot be decoded."""
    own: list[tuple[Any, str]] = [
        ({"type": "input_image", "image_url": "http://127.0.0.1/x.png"}, "URLs"),
        ({"type": "input_image", "file_id": "file_1"}, "no stored files"),
        ({"type": "input_image", "image_url": data_url(9)[:400]}, "image"), ({"type": "input_file"}, "needs file_data"),
        ({"type": "input_image"}, "needs 'image_url'"), ({"type": "input_text"}, "string under 'text'"),
        ({"type": "input_text", "text": "x", "y": 1}, "no 'y'"),
        ({"type": "input_file", "file_url": "https://example.org/x.pdf"}, "modality"),
        ({"type": "input_file", "file_data": "data:application/pdf;base64,AAAA"}, "needs file_data"),
        ({"type": "input_file", "file_data": "/etc/passwd"}, "needs file_data"),
        ({"type": "input_file", "file_data": "data:audio/wav;base64,AAAA"}, "takes no audio"),
        ({"type": "output_text", "text": 3}, "string under 'text'"),
    ]  # fmt: skip
    for part, message in [*PARTS, *own]:
        items = [*user("fine"), {"role": "assistant", "content": "ok"}, *user("see", part)]
        error = error_of(running.post(PATH, ask(items, instructions="be brief")), 400)
        assert error["param"].startswith("input[2].content[1]"), part
        assert message in error["message"], part
    assert_serves(running)


def test_limits_name_the_input(llm: AsyncLLM) -> None:
    """Too many messages or parts are told of `input`, not of chat's field."""
    with serving(llm, max_messages=3, max_parts=4) as running:
        for given in ([*user("x")] * 4, user(*["x"] * 5)):
            assert error_of(running.post(PATH, ask(given)), 400)["param"] == "input"


def test_errors_are_openais(running: Running) -> None:
    """Each status raises the client's own exception, with our message."""
    responses = running.client().responses
    with pytest.raises(openai.BadRequestError, match="input: ") as caught:
        responses.create(**ask("x", max_output_tokens=10**6))
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError, match="'other'") as missing:
        responses.create(model="other", input="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="resp_1") as caught:
        responses.create(**ask("x"), previous_response_id="resp_1")
    assert (caught.value.param, caught.value.code) == ("previous_response_id", "previous_response_not_found")
    with pytest.raises(openai.NotFoundError):
        responses.retrieve("resp_1")


# --- clients that leave, streams that fail --------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves(running: Running, *, stream: bool) -> None:
    """Its request is aborted while the engine waits, whether a stream or a whole response was awaited."""
    body = ask("go on", max_output_tokens=900, ignore_eos=True, stream=stream)
    stall = threading.Event()
    with httpx.Client(base_url=running.url, timeout=httpx.Timeout(60, read=60 if stream else 1)) as client:
        if stream:
            with client.stream("POST", PATH, json=body) as response:
                assert next(response.iter_lines()) == "event: response.created"
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
    """It ends with `error` and `response.failed`, which has the text so far."""
    body = ask("go on", max_output_tokens=900, ignore_eos=True, stream=True)
    with serving(llm) as running, running.http() as client:
        stall = threading.Event()
        with client.stream("POST", PATH, json=body) as response:
            lines = response.iter_lines()
            sent = [next(lines)]
            in_engine(llm, lambda _: stall.wait(600))
            running.server.stop()
            sent += list(lines)
            stall.set()
    events = [json.loads(line.removeprefix("data: ")) for line in sent if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    error, failed = events[-2:]
    assert (error["type"], error["error"]["code"]) == ("error", "unavailable")
    EVENT.validate_python(error, strict=True)
    EVENT.validate_python(failed, strict=True)
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"]["message"] == error["error"]["message"]
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert failed["response"]["output"][0]["content"][0]["text"] == "".join(deltas)


def test_the_client_raises_when_a_stream_fails(llm: AsyncLLM) -> None:
    """OpenAI's exception with our message, in the middle of the stream."""
    with serving(llm) as running:
        stall = threading.Event()
        stream = running.client().responses.create(**ask("go on", max_output_tokens=900), stream=True, extra_body=ON)
        assert next(iter(stream)).type == "response.created"
        in_engine(llm, lambda _: stall.wait(600))
        running.server.stop()
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
        stall.set()


def test_the_oldest_turns_are_left_out(running: Running, llm: AsyncLLM) -> None:
    """With `truncation: auto`, where prompt and output would be too long; else that is an error."""
    turns = [{"role": role, "content": "so many words " * 40} for _ in range(200) for role in ("user", "assistant")]
    given = [*turns, {"role": "user", "content": "The last?"}]
    assert error_of(running.post(PATH, ask(given)), 400)["code"] == "context_length_exceeded"
    response = running.post(PATH, ask(given, truncation="auto")).json()
    assert response["truncation"] == "auto"
    length = response["usage"]["input_tokens"]
    assert llm.max_model_len // 2 < length <= llm.max_model_len - 6
    shorter = running.post(PATH, ask(given, truncation="auto", max_output_tokens=llm.max_model_len - length + 1)).json()
    assert shorter["usage"]["input_tokens"] < length
