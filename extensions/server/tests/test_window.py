"""`max_window_size` over HTTP: the field, the server's default, what clients are told, whose part an error names."""

from __future__ import annotations

from typing import Any

from corellm import AsyncLLM
from extensions.server.tests.conftest import MODEL, Running, chat, data_url, image_part, serving
from extensions.server.tests.test_promises import CHAT, error_of


def conversation(*images: Any) -> list[dict[str, Any]]:
    """Three turns after a system message; the first and the last have an image."""
    first, last = images or (image_part(1), image_part(2))
    return [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [first, {"type": "text", "text": "First?"}]},
        {"role": "assistant", "content": "One."},
        {"role": "user", "content": "Second?"},
        {"role": "assistant", "content": "Two."},
        {"role": "user", "content": [last, {"type": "text", "text": "Third?"}]},
    ]


def count(running: Running, messages: Any, **fields: Any) -> int:
    """The tokens of a prompt, as `/tokenize` tells them."""
    response = running.post("/tokenize", {"model": MODEL, "messages": messages, **fields})
    assert response.status_code == 200, response.text
    return int(response.json()["count"])


def test_the_oldest_turns_are_left_out(running: Running) -> None:
    """Chat and `/tokenize` leave them out; the output is that of the shorter conversation."""
    messages = conversation()
    system, *turns = messages
    for kept in (turns, turns[2:], turns[4:]):
        size = count(running, [system, *kept])
        assert count(running, messages, max_window_size=size) == size
        response = running.post(CHAT, chat(messages, max_window_size=size)).json()
        assert response["usage"]["prompt_tokens"] == size
        shorter = running.post(CHAT, chat([system, *kept])).json()
        assert response["choices"] == shorter["choices"]
    error = error_of(running.post(CHAT, chat(messages, max_window_size=size - 1)), 400)
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "messages"
    assert f"max_window_size={size - 1}" in error["message"]


def test_the_default_is_the_operators(llm: AsyncLLM) -> None:
    """A request may say otherwise; a model's own limit stays."""
    messages = conversation()
    with serving(llm, max_window_size=100) as running:
        short = count(running, messages)
        assert short <= 100
        assert count(running, messages, max_window_size=10_000) > 100
        assert running.post(CHAT, chat(messages)).json()["usage"]["prompt_tokens"] == short


def test_errors_name_the_part_of_the_whole_conversation(running: Running) -> None:
    """Also where older items were left out; what was left out before is not opened."""
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    messages = conversation()
    size = count(running, [messages[0], *messages[3:]])
    for fields in ({}, {"max_window_size": size}, {"max_window_size": 10 * size}):
        error = error_of(running.post(CHAT, chat(conversation(image_part(1), broken), **fields)), 400)
        assert error["param"] == "messages[5].content[0]"
        assert "image 1" in error["message"]
        response = running.post(CHAT, chat(conversation(broken, image_part(2)), **fields))
        if fields.get("max_window_size") == size:
            assert response.status_code == 200
        else:
            assert error_of(response, 400)["param"] == "messages[1].content[0]"


def test_uuids_stay_with_their_items(running: Running) -> None:
    """An item that was sent before is known by its uuid, whether or not older ones are left out."""
    named = {**image_part(3), "uuid": "window-3"}
    assert count(running, conversation(image_part(1), named)) > 100
    alone = {"type": "image_url", "uuid": "window-3"}
    messages = conversation(image_part(1), alone)
    size = count(running, [messages[0], *messages[3:]])
    assert count(running, messages, max_window_size=size) == size


def test_media_of_turns_left_out_are_not_decoded(running: Running) -> None:
    """Sixty turns with an image each, of which only the last ones' are images."""
    turns: list[dict[str, Any]] = []
    for i in range(60):
        part = {"type": "image_url", "image_url": {"url": data_url(i) if i > 50 else "data:image/png;base64,AA"}}
        turns += [{"role": "user", "content": [part, "?"]}, {"role": "assistant", "content": "!"}]
    size = count(running, turns[-4:-1])
    assert count(running, turns[:-1], max_window_size=size) == size
