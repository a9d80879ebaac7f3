"""Bad input over HTTP: each gets its promised status and an error that names its place, and harms no other request.

The tables' rows go through every route that can carry them; after each table a good request must still be served.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from corellm import AsyncLLM
from extensions.server.tests.conftest import MODEL, Running, chat, data_url, idle, image_part, serving, user
from tests.fixtures import random_image, wait_until

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
POSTS = (
    CHAT, COMPLETE, "/v1/responses", "/tokenize", "/detokenize", "/v1/embeddings", "/classify", "/pooling", "/score",
    "/v2/rerank",
)  # fmt: skip
ROUTES = [("POST", path) for path in POSTS] + [
    ("GET", path) for path in ("/v1/models", "/v1/models/tiny", "/version", "/metrics", "/openapi.json", "/nothing")
]
ROUTES += [("GET", "/v1/responses/x"), ("DELETE", "/v1/responses/x"), ("GET", "/v1/responses/x/input_items")]
ROUTES += [("POST", "/v1/responses/x/cancel")]
JSON = {"Content-Type": "application/json"}


def send(running: Running, path: str, body: bytes, *, cut: int | None = None) -> socket.socket:
    """A connection on which a request, or its first bytes, was sent."""
    host, port = running.url.removeprefix("http://").split(":")
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connection = socket.create_connection((host, int(port)))
    connection.sendall((head.encode() + body)[:cut])
    return connection


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error in a response, which must have OpenAI's shape."""
    assert response.status_code == status, response.text
    (body,) = response.json().values()
    assert set(body) == {"message", "type", "param", "code"}
    assert 0 < len(body["message"]) <= 1000
    assert response.headers["x-request-id"]
    return dict(body)


def assert_serves(running: Running) -> None:
    """The canary: a good request has its usual output."""
    response = running.post(CHAT, chat(user("hello")))
    assert response.status_code == 200
    texts = {running.post(CHAT, chat(user("hello"))).json()["choices"][0]["message"]["content"] for _ in range(2)}
    assert texts == {response.json()["choices"][0]["message"]["content"]}


# --- row 1: not JSON ------------------------------------------------------------------------------------------------

NOT_JSON = [
    b"", b"{", b"[]", b'"text"', b"null", b"\xff\xfe", b"\x00", '{"a": "ü"}'.encode("utf-16"), b"{'a': 1}",
    b'{"model": NaN}', b'{"temperature": Infinity}', b'{"temperature": 1e999}', b'{"a": -1e999}',
    b"[" * 100_000, b'{"a":' * 100_000, b'{"a": ' + b"[" * 80 + b"]" * 80 + b"}", b'{"n": ' + b"9" * 5000 + b"}",
    b'{"model": "\\ud800"}', b'{"\\udfff": 1}', b"\xef\xbb\xbf{}",
]  # fmt: skip


@pytest.mark.parametrize("path", POSTS)
def test_row_1_not_json(running: Running, path: str) -> None:
    """400 `invalid JSON` on every route, whatever is wrong."""
    for body in NOT_JSON:
        error = error_of(running.post(path, content=body, headers=JSON), 400)
        assert error["message"].startswith("invalid JSON"), body[:20]
        assert error["code"] == "invalid_json"
    assert_serves(running)


@pytest.mark.parametrize("filling", ["[],", "{},", "0,", "[[[[1]]]],"])
def test_row_1_too_many_values(llm: AsyncLLM, filling: str) -> None:
    """They take many times the memory of their text, and parsing them holds up all others: refused while they come."""
    body = ('{"user":[' + filling * 500 + '""]}').encode()
    with serving(llm, max_json_values=400) as running:
        for path in POSTS:
            assert error_of(running.post(path, content=body, headers=JSON), 400)["code"] == "invalid_json"
        assert_serves(running)


def test_row_2_values_are_counted_as_bytes(llm: AsyncLLM) -> None:
    """What is bounded is the memory of all requests, also of values that take more of it than their text."""
    body = json.dumps(chat(user("x")) | {"user": [[]] * 1000})
    with serving(llm, max_held_bytes=16 * len(body)) as running:
        assert error_of(running.post(CHAT, content=body, headers=JSON), 503)["code"] == "unavailable"
        assert_serves(running)
        wait_until(lambda: running.service.intake.num_bytes == 0)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([
            "model", "messages", "prompt", "role", "content", "type", "text", "image_url", "stop", "n", "logit_bias",
            "stream", "stream_options", "seed", "max_tokens", "uuid", "url", "tokens", "priority", "top_k",
            "input", "instructions", "include", "text_1", "documents", "query", "dimensions", "top_n", "task",
        ]), inner, max_size=6),
        max_leaves=20,
    ),
    path=st.sampled_from(POSTS),
)  # fmt: skip
def test_any_json_is_a_client_error(running: Running, body: Any, path: str) -> None:
    """Whatever JSON comes, the status is 400, or 404 for a model that is not there."""
    if isinstance(body, dict) and body.get("model") is not None:
        body["model"] = MODEL
    response = running.post(path, content=json.dumps(body).encode(), headers=JSON)
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        error_of(response, 400)


# --- rows 2 and 3: HTTP ---------------------------------------------------------------------------------------------


def test_row_2_too_large(llm: AsyncLLM) -> None:
    """413 for a length that is announced, before any of it comes, and in the middle of one that is not."""
    with serving(llm, max_body_bytes=1000) as running:
        for path in POSTS:
            assert error_of(running.post(path, content=b"x" * 1001, headers=JSON), 413)["code"] == "request_too_large"
        host, port = running.url.removeprefix("http://").split(":")
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        for length in ("Content-Length: 99999999999\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n"):
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall((head + length).encode())
                if "chunked" in length:
                    connection.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")  # and never the end
                assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
        assert_serves(running)
        wait_until(lambda: running.service.intake.num_bytes == 0)  # the response comes first


def test_rows_2_and_4_a_refused_upload_is_told_why(llm: AsyncLLM) -> None:
    """A client that reads nothing before it has sent all of a large body gets its 413, 415, 404 or 401."""
    body = b"x" * 20_000_000
    with serving(llm, max_body_bytes=1000) as running:
        assert error_of(running.post(CHAT, content=body, headers=JSON), 413)["code"] == "request_too_large"
        error_of(running.post(CHAT, content=body, headers={"Content-Type": "text/plain"}), 415)
        error_of(running.post("/nothing", content=body, headers=JSON), 404)
        chunked = (body[:1_000_000] for _ in range(20))
        error_of(running.post(CHAT, content=chunked, headers=JSON), 413)
        assert_serves(running)
    with serving(llm, api_key=["a-key"]) as running:
        error_of(running.post(CHAT, content=body, headers=JSON), 401)


def test_row_2_all_bodies_together(llm: AsyncLLM) -> None:
    """Requests that are too large together are asked to come again."""
    with serving(llm, max_held_bytes=2000) as running:
        refused = running.post(CHAT, chat(user("x" * 2000)))
        assert error_of(refused, 503)["code"] == "unavailable"
        assert refused.headers["retry-after"]
        assert_serves(running)


def test_row_3_type_method_route(running: Running) -> None:
    """415, 405 with `Allow`, 404."""
    for path in POSTS:
        for headers in ({"Content-Type": "text/plain"}, {"Content-Type": "application/jsonx"}, {}):
            error_of(running.post(path, content=b"{}", headers=headers), 415)
        error_of(running.post(path, content=b"{}", headers={**JSON, "Content-Encoding": "gzip"}), 415)
        refused = running.get(path)
        error_of(refused, 405)
        assert refused.headers["allow"] == "POST"
    for path in ("/", "/v1", "/v2", "/docs", "/redoc", "/v1/chat/completions/", "/%00"):
        error_of(running.post(path, {}), 404)
    assert running.post(CHAT, content=json.dumps(chat(user("x"))).encode(), headers={
        "Content-Type": "Application/JSON; charset=utf-8"
    }).status_code == 200  # fmt: skip


# --- rows 4 and 5: keys and models ----------------------------------------------------------------------------------


def test_row_4_keys_on_every_route(llm: AsyncLLM) -> None:
    """401 without a right key on every route, known or not, except those of probes; each of several keys is let in."""
    with serving(llm, api_key=["first-key", "second-key"]) as running, httpx.Client(base_url=running.url) as client:
        for method, path in ROUTES:
            for sent in ("", "first-key", "Bearer", "Bearer first-ke", "Bearer first-keyy", "Basic first-key",
                         "Bearer first-key,second-key", "Bearer \u00fc"):  # fmt: skip
                headers = [(b"Authorization", sent.encode("latin-1"))] if sent else []
                refused = client.request(method, path, headers=headers, json={} if method == "POST" else None)
                assert error_of(refused, 401)["code"] == "invalid_api_key"
                assert "first-ke" not in refused.text
        for path in ("/health", "/ready"):
            assert client.get(path).json() == {"status": "ok"}
        for key in ("first-key", "second-key"):
            assert client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200


def test_rows_4_and_31_clients_share_no_cache(llm: AsyncLLM) -> None:
    """The same prompt is cached for the same key, and not for another one."""
    with serving(llm, api_key=["first-key", "second-key"]) as running:
        body = chat(user("a prompt of its own, long enough for a block or two: " + "word " * 20), max_tokens=1)

        def cached(key: str) -> int:
            response = running.post(CHAT, body, headers={"Authorization": f"Bearer {key}"})
            return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert cached("first-key") == 0
        assert cached("second-key") == 0
        assert cached("first-key") > 0
        assert cached("second-key") > 0


def test_row_31_other_images_share_no_cache(running: Running) -> None:
    """Tokens of an image are cached for the same image, and not for another size, mode or content of it."""
    image = random_image(40, 30, 99)
    others = {
        "size": image.resize((30, 40)), "mode": image.convert("L"), "alpha": image.convert("RGBA"),
        "pixel": Image.eval(image, lambda value: value ^ 1),
    }  # fmt: skip

    def cached(shown: Image.Image) -> int:
        stream = io.BytesIO()
        shown.save(stream, "PNG")
        url = "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
        response = running.post(CHAT, chat(user({"image": url}, "what?"), max_tokens=1))
        return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    first = cached(image)
    assert cached(image) > 16 + first
    assert {name: cached(other) <= first + 8 for name, other in others.items()} == dict.fromkeys(others, True)


def test_row_5_unknown_model(running: Running) -> None:
    """404, with at most 100 characters of the name."""
    for path, body in ((CHAT, {"messages": user("x")}), (COMPLETE, {"prompt": "x"}), ("/tokenize", {"prompt": "x"}),
                       ("/v1/responses", {"input": "x"})):  # fmt: skip
        error = error_of(running.post(path, {"model": "m" * 5000, **body}), 404)
        assert error["code"] == "model_not_found"
        assert error["message"].count("m") < 120
    error_of(running.get("/v1/models/" + "m" * 3000), 404)


# --- rows 6 to 8: parameters ----------------------------------------------------------------------------------------

SAMPLING: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 2.1}, "temperature"), ({"temperature": -0.1}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": True}, "temperature"), ({"temperature": 10**400}, "temperature"),
    ({"top_p": 0}, "top_p"), ({"top_p": 1.1}, "top_p"), ({"top_k": -2}, "top_k"), ({"min_p": 1.5}, "min_p"),
    ({"n": 0}, "n"), ({"n": 17}, "n"), ({"n": 1.5}, "n"), ({"n": 10**30}, "n"),
    ({"presence_penalty": 2.1}, "presence_penalty"), ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"), ({"seed": 10**30}, "seed"), ({"seed": "x"}, "seed"),
    ({"stop": ["a"] * 5}, "stop"), ({"stop": [""]}, "stop"), ({"stop": 3}, "stop"), ({"stop": ["a", None]}, "stop"),
    ({"stop": "x" * 2000}, "stop"), ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"), ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
    ({"logit_bias": {"1": 101}}, "logit_bias"), ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"), ({"stream": 1}, "stream"), ({"stream_options": {}}, "stream_options"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"), ({"priority": 1}, "priority"),
    ({"nonsense": 1}, "nonsense"),
    ({"bad_words": "x" * 2000}, "bad_words"), ({"cache_salt": "mine"}, "cache_salt"), ({"ignore_eos": 1}, "ignore_eos"),
    ({"allowed_token_ids": []}, "allowed_token_ids"), ({"stop_token_ids": [-1]}, "stop_token_ids"),
    # row 7: beyond the logits
    ({"logit_bias": {"999999": 1}}, "logit_bias"), ({"stop_token_ids": [999999]}, "stop_token_ids"),
    ({"allowed_token_ids": [999999]}, "allowed_token_ids"),
]  # fmt: skip
JSON_SCHEMA = "response_format.json_schema"
EXPLOSIVE = {"type": "integer", "multipleOf": 999_983}
OF_CHAT: list[tuple[dict[str, Any], str]] = [
    ({"logprobs": 1}, "logprobs"), ({"top_logprobs": 2}, "top_logprobs"), ({"messages": []}, "messages"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"), ({"messages": "x"}, "messages"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"), ({"messages": [1]}, "messages[0]"),
    ({"response_format": {"type": "xml"}}, "response_format.type"), ({"tools": [{}]}, "tools[0]"),
    ({"tool_choice": "required"}, "tool_choice"), ({"audio": {"voice": "x"}}, "audio"),
    # row 19: a request replaces no part of the server
    ({"chat_template": "{{ messages }}"}, "chat_template"),
    ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs"),
    ({"mm_processor_kwargs": {"size": 9}}, "mm_processor_kwargs"), ({"processor": "x"}, "processor"),
    ({"trust_remote_code": True}, "trust_remote_code"),
    # row 21: a bad or explosive schema, regex or grammar
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": EXPLOSIVE}}}, f"{JSON_SCHEMA}.schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}, f"{JSON_SCHEMA}.schema"),
    ({"guided_regex": "(?=a)b"}, "guided_regex"), ({"guided_grammar": "root ::= root"}, "guided_grammar"),
    ({"guided_json": {"enum": []}}, "guided_json"), ({"guided_choice": [1]}, "guided_choice[0]"),
    ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex"),
    ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
    ({"max_window_size": 0}, "max_window_size"), ({"max_window_size": 1.5}, "max_window_size"),
]  # fmt: skip
OF_COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": ""}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": [[]]}, "prompt"), ({"prompt": 5}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"), ({"prompt": ["x"] * 129}, "prompt"), ({"prompt": ["x"] * 128, "n": 5}, "n"),
    ({"prompt": [-1]}, "prompt"), ({"prompt": [999999]}, "prompt"), ({"prompt": [10**30]}, "prompt"),
    ({"prompt": ["ok", ""]}, "prompt[1]"), ({"logprobs": 21}, "logprobs"), ({"logprobs": -1}, "logprobs"),
    ({"suffix": "x"}, "suffix"), ({"best_of": 2}, "best_of"), ({"prompt": "<image>"}, "prompt"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_rows_6_7_19_and_21_parameters(running: Running, *, stream: bool) -> None:
    """400 with the parameter's name, before a stream begins; others go on."""
    streamed = {"stream": True} if stream else {}
    for given_fields, param in SAMPLING + OF_CHAT:
        body = {**chat(user("x")), **streamed, **given_fields}
        if "stream_options" in given_fields and "stream" not in given_fields:
            body.pop("stream", None)
        assert error_of(running.post(CHAT, body), 400)["param"] == param, given_fields
    for given_fields, param in SAMPLING + OF_COMPLETIONS:
        body = {"model": MODEL, "prompt": "x", "max_tokens": 3, **streamed, **given_fields}
        if "stream_options" in given_fields and "stream" not in given_fields:
            body.pop("stream", None)
        assert error_of(running.post(COMPLETE, body), 400)["param"] == param, given_fields
    assert_serves(running)
    wait_until(lambda: idle(running))


def test_row_8_too_long(running: Running) -> None:
    """400 with both numbers: for prompts, for what is to be generated, and for media."""
    limit = running.get("/v1/models").json()["data"][0]["max_model_len"]
    for path, body in (
        (CHAT, chat(user("word " * limit))), (CHAT, chat(user("x"), max_tokens=limit)),
        (CHAT, chat(user("x"), max_completion_tokens=limit)), (COMPLETE, {"prompt": "x", "max_tokens": limit}),
        (COMPLETE, {"prompt": [1] * limit, "max_tokens": 1}), (COMPLETE, {"prompt": "x" * 3_000_000}),
    ):  # fmt: skip
        error = error_of(running.post(path, {"model": MODEL, **body}), 400)
        assert str(limit) in error["message"]
    assert_serves(running)


def test_row_8_more_than_fits_at_least(running: Running) -> None:
    """`min_tokens` that no output can have, where the request states no most."""
    limit = running.get("/v1/models").json()["data"][0]["max_model_len"]
    for path, body in ((CHAT, {"messages": user("x")}), ("/v1/responses", {"input": "x"})):
        error = error_of(running.post(path, {"model": MODEL, **body, "min_tokens": limit}), 400)
        assert error["param"] == "min_tokens"
        assert str(limit) in error["message"]


def test_row_8_a_long_conversation_is_not_rendered(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused by its characters, as a text is; also the newest message of one whose oldest turns may be left out."""
    monkeypatch.setattr("corellm.multimodal.chat.rendering.ChatRenderer.render", None)
    text = "x" * 3_000_000
    for more in ({}, {"max_window_size": 64}):
        error = error_of(running.post(CHAT, chat(user(text)) | more), 400)
        assert error["code"] == "context_length_exceeded"
        assert f"{len(text)} characters" in error["message"]


# --- rows 9 and 16 to 18: content -----------------------------------------------------------------------------------

PARTS: list[tuple[Any, str]] = [
    (1, "a part is an object"), (None, "a part is an object"), ([], "a part is an object"), ({}, "type None"),
    ({"type": "picture"}, "type 'picture'"), ({"type": 3}, "type 3"), ({"type": "text"}, "string under 'text'"),
    ({"type": "text", "text": 1}, "string under 'text'"), ({"type": "text", "text": "x", "y": 1}, "no 'y'"),
    ({"type": "image_url"}, "needs 'image_url'"), ({"type": "image_url", "image_url": 4}, "must be a URL"),
    ({"type": "image_url", "image_url": {}}, "needs 'image_url'"), ({"type": "image_url", "image_url": ""}, "is empty"),
    ({"type": "image_url", "image_url": {"url": []}}, "must be a URL"),
    ({"type": "image_url", "image_url": {"url": "data:image/png;base64,xxxx"}}, "image"),
    ({"type": "image_url", "image_url": {"url": "data:image/png;base64"}}, "no comma"),
    ({"type": "image_url", "image_url": {"url": "data:image/png;base64,????"}}, "not base64"),
    ({"type": "image_url", "image_url": {"url": "data:,"}}, "image"),
    ({"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}, "URLs"),
    ({"type": "image_url", "image_url": {"url": "HTTPS://example.org/x.png"}}, "URLs"),
    ({"type": "image_url", "image_url": {"url": " data:image/png;base64,x"}}, "files"),
    ({"type": "image_url", "image_url": {"url": "ftp://example.org/x.png"}}, "files"),
    ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "files"),
    ({"type": "image_url", "image_url": {"url": "/etc/passwd"}}, "files"),
    ({"image": "/etc/passwd"}, "files"), ({"image": "x", "text": "y"}, "type None"),
    ({"type": "image_url", "image_url": data_url(1)[:200]}, "image"), ({"image": data_url(1), "uuid": 3}, "uuid must"),
    ({"type": "image", "uuid": "never sent"}, "never sent"), ({"image": data_url(1), "uuid": ""}, "uuid must"),
    ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}, "no video"),
    ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "no audio"),
    ({"type": "input_audio", "input_audio": {"data": "AAAA"}}, "{data, format}"),
    ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "../x"}}, "like wav"),
    # row 18: embeddings never come in
    ({"type": "image_embeds", "image_embeds": "gASVAAAAAAAAAA=="}, "type 'image_embeds'"),
    ({"type": "image", "image": {"embeds": [[1.0]]}}, "no 'embeds'"), ({"type": "file", "file": {}}, "needs file_data"),
]  # fmt: skip


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
def test_rows_9_and_18_parts(running: Running, path: str) -> None:
    """400 that names the part, of the message it is in; nothing of what was sent is repeated at length."""
    for part, message in PARTS:
        messages = [*user("fine"), {"role": "assistant", "content": "ok"}, *user("see", part)]
        body = chat(messages) if path == CHAT else {"messages": messages}
        error = error_of(running.post(path, body), 400)
        assert error["param"].startswith("messages[2].content[1]"), part
        assert error["message"].startswith("messages[2].content[1]: ")
        assert message in error["message"], part
    for message in ({}, {"role": "user"}, {"role": "user", "content": None},
                    {"role": "root", "content": "x"}, {"role": ["user"], "content": "x"},
                    {"role": "user", "content": 3}, {"role": "user", "content": "x", "z": 1}):  # fmt: skip
        assert error_of(running.post(CHAT, chat([message])), 400)["param"].startswith("messages[0]")
    assert_serves(running)


def test_row_9_the_broken_one_of_several(running: Running) -> None:
    """The item that cannot be decoded is named by its own part."""
    broken = {"type": "image_url", "image_url": {"url": data_url(9)[:400]}}
    messages = [*user(image_part(1), "a"), {"role": "assistant", "content": "b"}, *user("c", image_part(2), broken)]
    assert error_of(running.post(CHAT, chat(messages)), 400)["param"] == "messages[2].content[2]"


def test_row_16_too_many_parts(llm: AsyncLLM) -> None:
    """400 before anything is fetched or decoded."""
    fetched: list[str] = []

    async def fetch(url: str, *, kind: str) -> bytes:
        fetched.append(url)
        return b""

    remote = {"type": "image_url", "image_url": {"url": "http://example.org/x.png"}}
    with serving(llm, fetch, max_items=3, max_parts=8, max_messages=4) as running:
        for messages in (user(*[remote] * 4), user(*["x"] * 9), user("x") * 5, user(remote, remote) * 2,
                         user(remote, {"type": "video_url", "video_url": "http://example.org/x.mp4"}),
                         user(remote, {"type": "nonsense"})):  # fmt: skip
            for path in (CHAT, "/tokenize"):
                body = chat(messages) if path == CHAT else {"messages": messages}
                error_of(running.post(path, body), 400)
        assert fetched == []
        assert error_of(running.post(CHAT, chat(user(remote))), 400)["param"] == "messages[0].content[0]"
        assert fetched == ["http://example.org/x.png"]


def test_row_16_the_models_own_limit(tiny_llava: Path) -> None:
    """An item over the model's limit is refused by its place, before its URL is looked at."""
    llm = AsyncLLM(str(tiny_llava), dtype="float32", limit_mm_per_prompt={"image": 1})
    try:
        with serving(llm) as running:
            parts = [image_part(1), {"type": "image_url", "image_url": "http://example.org/x.png"}]
            error = error_of(running.post(CHAT, chat(user(*parts))), 400)
            assert error["param"] == "messages[0].content[1]"
            assert "item 2 of image" in error["message"]
    finally:
        llm.close()


def test_row_17_special_tokens_are_text(running: Running) -> None:
    """A placeholder or a special token that a user types costs what its characters cost; no image appears."""
    for text in ("<image>", "a <image> b", "</s>", "<s><image></s>", "<ima", "<|im_start|>system"):
        counted = running.post("/tokenize", {"messages": user(text)}).json()
        special = {"<image>", "</s>"} & set(
            running.post("/tokenize", {"messages": user(text), "return_token_strs": True}).json()["token_strs"]
        )
        assert special == set()
        response = running.post(CHAT, chat(user(text)))
        assert response.status_code == 200
        assert response.json()["usage"]["prompt_tokens"] == counted["count"]
    with_image = running.post("/tokenize", {"messages": user(image_part(1), "<image>")}).json()["count"]
    assert with_image == running.post("/tokenize", {"messages": user(image_part(1), "<imagf>")}).json()["count"]


# --- rows 27, 28 and 30: clients ------------------------------------------------------------------------------------


def test_row_27_clients_that_leave(running: Running) -> None:
    """Requests of clients that left, at any moment, streaming or not, are aborted and leave nothing."""

    def leave(index: int) -> None:
        body = json.dumps(
            chat(user(*([image_part(index)] if index % 3 == 0 else []), "go on"), max_tokens=400, ignore_eos=True)
            | ({"stream": True} if index % 2 else {})
        ).encode()
        moment = index % 5
        cut = {0: 20 + index, 1: len(body) // 2}.get(moment)
        with send(running, CHAT, body, cut=cut) as connection:
            if moment == 3:
                time.sleep(0.02 * (index % 7))
            if moment == 4 and index % 2:
                connection.recv(300)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(leave, range(60)))
    wait_until(lambda: len(running.service.intake) == 0 and idle(running))
    assert running.service.intake.num_bytes == 0
    assert_serves(running)


def test_row_28_queue_full(llm: AsyncLLM) -> None:
    """503 with `Retry-After` as soon as the server is full; those that are in it are served."""

    async def fetch(url: str, *, kind: str) -> bytes:
        return await asyncio.get_running_loop().create_future()  # until the client leaves

    held = json.dumps(chat(user({"type": "image_url", "image_url": "http://example.org/x.png"}))).encode()
    with serving(llm, fetch, max_queue=2) as running:
        with contextlib.ExitStack() as clients:
            for _ in range(2):
                clients.enter_context(send(running, CHAT, held))
            wait_until(lambda: len(running.service.intake) == 2)
            for path in POSTS:
                refused = running.post(path, {})
                assert error_of(refused, 503)["code"] == "unavailable"
                assert refused.headers["retry-after"] == "1"
            assert running.get("/health").status_code == 200
        wait_until(lambda: len(running.service.intake) == 0)
        with ThreadPoolExecutor(16) as pool:
            statuses = list(pool.map(lambda _: running.post(CHAT, chat(user("x"))).status_code, range(60)))
        assert set(statuses) <= {200, 503}
        assert 200 in statuses
        assert_serves(running)


def test_row_30_equal_client_ids(running: Running) -> None:
    """Requests with the same id are both served; the id is echoed if it is sane, and else replaced."""
    headers = {"X-Request-Id": "mine-1.2:3"}
    with ThreadPoolExecutor(4) as pool:
        responses = list(pool.map(lambda _: running.post(CHAT, chat(user("x")), headers=headers), range(8)))
    assert {response.status_code for response in responses} == {200}
    assert {response.headers["x-request-id"] for response in responses} == {"mine-1.2:3"}
    assert len({response.json()["id"] for response in responses}) == 8
    for odd in ("x" * 129, "a b", "a\tb", "<script>", "é"):
        response = running.get("/health", headers=[(b"X-Request-Id", odd.encode("latin-1"))])
        assert response.status_code == 200
        assert response.headers["x-request-id"] != odd


def test_a_response_that_is_not_read_is_counted(running: Running, llm: AsyncLLM) -> None:
    """A large one: its request is in the server until most of it was read, not until it was written to a buffer."""
    tokenizer = llm.engine.context.tokenizer
    longest = max(range(len(tokenizer)), key=lambda token: len(tokenizer.decode([token])))
    body = json.dumps({"tokens": [longest] * 1_000_000}).encode()
    with send(running, "/detokenize", body) as connection:
        wait_until(lambda: len(running.service.intake) == 1)
        assert connection.recv(12) == b"HTTP/1.1 200"
        time.sleep(0.5)
        assert len(running.service.intake) == 1
    wait_until(lambda: len(running.service.intake) == 0)
    whole = running.post("/detokenize", content=body, headers=JSON)
    assert len(whole.json()["prompt"]) > 1 << 23  # more than the system's buffers hold


def test_a_slow_reader_holds_up_nothing(running: Running) -> None:
    """A client that reads nothing does not keep others waiting, and its request ends when it leaves."""
    host, port = running.url.removeprefix("http://").split(":")
    body = json.dumps(chat(user("go on"), max_tokens=400, ignore_eos=True, stream=True, logprobs=True,
                           top_logprobs=20)).encode()  # fmt: skip
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect((host, int(port)))
        connection.sendall(head.encode() + body)
        wait_until(lambda: len(running.service.intake) == 1)
        assert_serves(running)
        wait_until(lambda: idle(running))  # generated to its end, unread
    wait_until(lambda: len(running.service.intake) == 0)
