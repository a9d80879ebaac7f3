"""OpenAI's client in all its forms: synchronous and not, whole, streamed, raw, by helpers; its errors and retries.

What the outputs are is `test_openai_client`'s and `test_equality`'s.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from corellm import AsyncLLM
from extensions.server.tests.conftest import MODEL, Running, chat, data_url, idle, image_part, in_engine, serving, user
from tests.fixtures import wait_until

LONG = {**chat(user("hello")), "max_tokens": 300, "extra_body": {"ignore_eos": True}}
PROMPT = {"model": MODEL, "prompt": "USER: one ASSISTANT:", "temperature": 0, "max_tokens": 6}
CHATS: dict[str, dict[str, Any]] = {
    "text": chat(user("hello")),
    "image": chat(user(image_part(1), {"type": "text", "text": "what?"})),
    "n and logprobs": chat(user("hello"), n=3, temperature=1, seed=3, logprobs=True, top_logprobs=2),
    "stop": chat(user("hello"), stop=["e", "a"], max_completion_tokens=9),
    "roles": chat([{"role": "system", "content": "be brief"}, *user("hi"), {"role": "assistant", "content": "ok"}]),
    "bias": chat(user("hello"), logit_bias={"30": 5}, presence_penalty=1, frequency_penalty=0.5, top_p=0.9),
}
COMPLETIONS: dict[str, dict[str, Any]] = {
    "text": PROMPT,
    "ids": {**PROMPT, "prompt": [1, 40, 50]},
    "lists": {**PROMPT, "prompt": ["one", "two two", "three"], "n": 2, "temperature": 1, "seed": 4},
    "lists of ids": {**PROMPT, "prompt": [[1, 40], [1, 50, 60]]},
    "echo and logprobs": {**PROMPT, "echo": True, "logprobs": 2},
    "logprobs": {**PROMPT, "logprobs": 0},
    "stop": {**PROMPT, "stop": "e"},
}


def in_async(running: Running, use: Callable[[openai.AsyncOpenAI], Any]) -> Any:
    """What a coroutine function gets of the asynchronous client."""

    async def main() -> Any:
        async with openai.AsyncOpenAI(base_url=running.url + "/v1", api_key="x", max_retries=0) as client:
            return await use(client)

    return asyncio.run(main())


async def listed(stream: AsyncIterator[Any]) -> list[Any]:
    """All of its items."""
    return [item async for item in stream]


def content(response: Any) -> dict[str, Any]:
    """A response without what no two of them share."""
    return {key: value for key, value in response.to_dict().items() if key not in ("id", "created")}


def joined(chunks: list[Any]) -> dict[int, tuple[Any, ...]]:
    """Text, finish reason and log-probabilities of each completion of a stream."""
    made: dict[int, tuple[Any, ...]] = {}
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        text, reason, values = made.get(choice.index, ("", None, ()))
        text += choice.text if hasattr(choice, "text") else choice.delta.content or ""
        made[choice.index] = text, choice.finish_reason or reason, values + logprobs(choice)
    return made


def logprobs(choice: Any) -> tuple[Any, ...]:
    """Tokens and rounded log-probabilities."""
    if choice.logprobs is None:
        return ()
    if hasattr(choice, "text"):
        pairs = zip(choice.logprobs.tokens, choice.logprobs.token_logprobs, strict=True)
    else:
        pairs = ((one.token, one.logprob) for one in choice.logprobs.content)
    return tuple((token, None if value is None else round(value, 3)) for token, value in pairs)


def whole(response: Any) -> dict[int, tuple[Any, ...]]:
    """The same of a response."""
    return {
        choice.index: (
            choice.text if hasattr(choice, "text") else choice.message.content, choice.finish_reason, logprobs(choice)
        )
        for choice in response.choices
    }  # fmt: skip


@pytest.mark.parametrize(
    ("resource", "name"), [*(("chat", n) for n in CHATS), *(("completions", n) for n in COMPLETIONS)]
)
def test_all_forms_of_a_request_are_alike(running: Running, resource: str, name: str) -> None:
    """Synchronous, asynchronous, streamed by either: the same texts, reasons, log-probabilities and usage."""
    request = CHATS[name] if resource == "chat" else COMPLETIONS[name]
    streamed = {**request, "stream": True, "stream_options": {"include_usage": True}}

    def create(client: Any) -> Any:
        return (client.chat.completions if resource == "chat" else client.completions).create

    async def stream(client: openai.AsyncOpenAI) -> list[Any]:
        return await listed(await create(client)(**streamed))

    first = create(running.client())(**request)
    assert whole(first)
    assert whole(in_async(running, lambda client: create(client)(**request))) == whole(first)
    for chunks in (list(create(running.client())(**streamed)), in_async(running, stream)):
        assert joined(chunks) == whole(first)
        assert content(chunks[-1].usage) | {"prompt_tokens_details": None} == content(first.usage) | {
            "prompt_tokens_details": None  # how much of the prompt was cached differs
        }
    without_usage = list(create(running.client())(**{**request, "stream": True}))
    assert joined(without_usage) == whole(first)
    assert all(chunk.choices and chunk.usage is None for chunk in without_usage)


def test_models(running: Running) -> None:
    """Listed, iterated and retrieved, by both clients."""
    client = running.client()
    (model,) = list(client.models.list())
    assert in_async(running, lambda other: other.models.retrieve(MODEL)) == client.models.retrieve(MODEL) == model
    assert in_async(running, lambda other: listed(other.models.list())) == [model]


def test_stream_helpers(running: Running) -> None:
    """`stream()` accumulates events to the response, also of several completions with log-probabilities."""
    for request in CHATS.values():
        want = running.client().chat.completions.create(**request)
        with running.client().chat.completions.stream(**request) as stream:
            deltas = [event.delta for event in stream if event.type == "content.delta"]
            assert whole(stream.current_completion_snapshot) == whole(want)
        if len(want.choices) == 1:
            assert "".join(deltas) == want.choices[0].message.content

    text = want.choices[0].message.content or ""
    ends = {**request, "stop": text[-1]}  # the helpers raise an error for an output that is cut

    async def use(client: openai.AsyncOpenAI) -> Any:
        async with client.chat.completions.stream(**ends) as stream:
            return await stream.get_final_completion()

    parsed = running.client().chat.completions.parse(**ends)
    assert whole(in_async(running, use)) == whole(parsed) == whole(running.client().chat.completions.create(**ends))
    assert parsed.choices[0].finish_reason == "stop"
    with pytest.raises(openai.LengthFinishReasonError):
        running.client().chat.completions.parse(**request)


def test_raw_and_streaming_responses(running: Running) -> None:
    """Headers are there beside the parsed response; a body can be read in pieces; ids are the client's own."""
    completions = running.client().chat.completions
    raw = completions.with_raw_response.create(**CHATS["text"], extra_headers={"X-Request-Id": "mine:1"})
    assert raw.headers["x-request-id"] == raw.parse()._request_id == raw.request_id == "mine:1"
    assert raw.headers["content-type"] == "application/json"
    assert (raw.status_code, raw.retries_taken) == (200, 0)
    events = completions.with_raw_response.create(**CHATS["text"], stream=True)
    assert events.headers["content-type"].startswith("text/event-stream")
    assert joined(list(events.parse())) == whole(raw.parse())
    with completions.with_streaming_response.create(**CHATS["text"]) as response:
        assert whole(response.parse()) == whole(raw.parse())
        assert len(response.headers["x-request-id"]) > 10
    with completions.with_streaming_response.create(**CHATS["text"], stream=True) as response:
        *_, last = (line for line in response.iter_lines() if line)
        assert last == "data: [DONE]"

    async def use(client: openai.AsyncOpenAI) -> Any:
        async with client.chat.completions.with_streaming_response.create(**CHATS["text"]) as response:
            return await response.parse()

    assert whole(in_async(running, use)) == whole(raw.parse())


def test_image_urls_given_as_strings_and_history(running: Running) -> None:
    """A message of the response, as the client has it, goes back; so does an image by a `data:` URL with details."""
    create = running.client().chat.completions.create
    url = {"type": "image_url", "image_url": {"url": data_url(1), "detail": "auto"}}
    first = create(**chat(user(url, {"type": "text", "text": "what?"})))
    assert create(**chat([*user(url, "what?"), first.choices[0].message, *user("sure?")])).choices[0].message.content


# --- errors ---------------------------------------------------------------------------------------------------------


def test_each_status_is_an_exception_of_the_client(llm: AsyncLLM) -> None:
    """With our message, parameter, code and id, by both clients, for responses and for streams."""
    wrong: list[tuple[type[openai.APIStatusError], int, str | None, dict[str, Any]]] = [
        (openai.BadRequestError, 400, "temperature", chat(user("x"), temperature=3)),
        (openai.BadRequestError, 400, "messages[0].content[0]", chat(user({"type": "image_url"}))),
        (openai.BadRequestError, 400, "messages", chat(user("word " * 3000))),
        (openai.NotFoundError, 404, "model", {**chat(user("x")), "model": "other"}),
        (openai.APIStatusError, 413, None, chat(user("x" * 200_000))),
    ]
    with serving(llm, max_body_bytes=100_000, api_key=["right"]) as running:
        client = running.client("right")
        for kind, status, param, request in wrong:
            for stream in (False, True):
                with pytest.raises(kind) as caught:
                    client.chat.completions.create(**request, stream=stream)
                assert (caught.value.status_code, caught.value.param) == (status, param)
                assert caught.value.message
                assert caught.value.request_id
        with pytest.raises(openai.AuthenticationError) as refused:
            running.client("wrong").models.list()
        assert (refused.value.status_code, refused.value.code) == (401, "invalid_api_key")
        for path in ("/embeddings-of-nothing", "/models/none"):
            with pytest.raises(openai.NotFoundError):
                client.get(path, cast_to=object)
        with pytest.raises(openai.APIStatusError) as method:
            client.get("/completions", cast_to=object)
        assert method.value.status_code == 405
        with pytest.raises(openai.AuthenticationError):
            in_async(running, lambda other: other.chat.completions.create(**chat(user("x"))))


def test_an_internal_error(running: Running, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """A 500 has an id under which the log has the cause, once, and nothing of the cause itself."""

    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("a secret at 0x7f0000000000")

    monkeypatch.setattr(running.service.client.input_processor, "process_chat", fail)
    with pytest.raises(openai.InternalServerError, match=r"internal error [0-9a-f]{16}; ") as caught:
        running.client().chat.completions.create(**chat(user("x")))
    assert "secret" not in caught.value.message
    (logged,) = (message for message in caplog.messages if "internal error" in message)
    assert caught.value.message.partition("internal error ")[2][:16] in logged


@pytest.fixture
def stalled(tiny_llava: Path) -> Iterator[tuple[AsyncLLM, Callable[[], threading.Event]]]:
    """An engine of its own, and a function that stops it between two steps until the event that it returns is set."""
    llm, events = AsyncLLM(str(tiny_llava), dtype="float32"), []

    def stall() -> threading.Event:
        events.append(threading.Event())
        in_engine(llm, lambda _, event=events[-1]: event.wait(600))
        return events[-1]

    yield llm, stall
    for event in events:
        event.set()
    llm.close()


def test_a_full_server_is_asked_again(stalled: tuple[AsyncLLM, Callable[[], threading.Event]]) -> None:
    """A 503 says when; the client comes again until there is room."""
    llm, stall = stalled
    with serving(llm, max_queue=1) as running:
        event, ended = stall(), threading.Event()
        held = threading.Thread(target=lambda: (running.post("/v1/chat/completions", chat(user("x"))), ended.set()))
        held.start()
        wait_until(lambda: len(running.service.intake) == 1)
        with pytest.raises(openai.InternalServerError, match="full") as caught:
            running.client().chat.completions.create(**chat(user("x")))
        assert (caught.value.status_code, caught.value.response.headers["retry-after"]) == (503, "1")
        patient = running.client().with_options(max_retries=20).chat.completions.with_raw_response
        refusals = sum(1 for _ in refused(running))

        def release() -> None:
            wait_until(lambda: sum(1 for _ in refused(running)) > refusals or ended.is_set())
            event.set()

        releasing = threading.Thread(target=release)
        releasing.start()
        response = patient.create(**chat(user("x")))
        assert response.parse().choices[0].message.content is not None
        assert response.retries_taken >= 1
        held.join()
        releasing.join()


def refused(running: Running) -> Iterator[str]:
    """Once for each request that was refused because the server was full."""
    for family in running.service.metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "corellm:requests_total" and sample.labels["outcome"] == "unavailable":
                yield from ["refused"] * int(sample.value)


def test_a_client_that_waits_no_longer(stalled: tuple[AsyncLLM, Callable[[], threading.Event]]) -> None:
    """Its timeout is its own exception, and its request is aborted."""
    llm, stall = stalled
    with serving(llm) as running:
        event = stall()
        with pytest.raises(openai.APITimeoutError):
            running.client().with_options(timeout=0.2).chat.completions.create(**LONG)
        event.set()
        wait_until(lambda: not len(running.service.intake) and idle(running))


def test_a_stream_that_fails(stalled: tuple[AsyncLLM, Callable[[], threading.Event]]) -> None:
    """An error after the first events is raised where the stream is read."""
    llm, stall = stalled
    with serving(llm) as running:

        async def read(client: openai.AsyncOpenAI) -> None:
            stream = await client.chat.completions.create(**LONG, stream=True)
            await anext(stream)
            stall()
            running.server.stop()
            await listed(stream)

        with pytest.raises(openai.APIError, match="shutting down") as caught:
            in_async(running, read)
        assert not isinstance(caught.value, openai.APIStatusError)  # which is for a response that never began


def test_no_server() -> None:
    """A connection that is refused is the client's own exception."""
    with pytest.raises(openai.APIConnectionError):
        openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=0).models.list()
