"""A batch's results are what the server responds over HTTP: conversations with images, prompts, tokens, and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corellm import AsyncLLM
from extensions.server.tests.batch.conftest import CHAT, Batch, line, results, written
from extensions.server.tests.conftest import MODEL, Running, chat, data_url, image_part, user
from extensions.server.tests.test_equality import EXTRA
from tests.fixtures import random_image

COMPLETE = "/v1/completions"
OTHERS: list[tuple[str, dict[str, Any]]] = [
    (
        COMPLETE,
        {"model": MODEL, "prompt": ["one", "two"], "max_tokens": 5, "temperature": 0, "echo": True, "logprobs": 2},
    ),
    (CHAT, chat(user("hello"), n=2, seed=3, temperature=1.0)),
    (CHAT, {**chat(user("hello")), "model": "other"}),
    (CHAT, chat(user({"image": "data:image/png;base64,AAAA"}))),
    (CHAT, chat(user({"image": "/etc/passwd"}))),
    (CHAT, chat(user({"image": "https://example.org/image.png"}))),
    (CHAT, {}),
    (CHAT, {"temprature": 1}),
    (COMPLETE, {"model": MODEL, "prompt": "x", "max_tokens": 100_000}),
    ("/tokenize", {"messages": user({"image": data_url(3)}, "what?")}),
    ("/detokenize", {"tokens": [5, 6]}),
    ("/v1/nothing", {}),
    ("/health", {}),
]
_OWN = {"id", "created", "prompt_tokens_details"}
"""Fields that differ from one request to another: the cache may have been filled in between."""


def without_own(value: Any, of_float: Callable[[float], Any] = float) -> Any:
    """A response without what is its own."""
    if isinstance(value, dict):
        return {key: without_own(inner, of_float) for key, inner in value.items() if key not in _OWN}
    if isinstance(value, list):
        return [without_own(inner, of_float) for inner in value]
    return of_float(value) if isinstance(value, float) else value


def near(value: float) -> Any:
    """Log-probabilities differ in their last digits by what else is in a step."""
    return pytest.approx(value, abs=1e-3)


def conversation(number: int) -> dict[str, Any]:
    """Text of some length, with up to two images."""
    images = [image_part(seed) for seed in range(number % 3)]
    text = {"type": "text", "text": f"question {number}: " + "why " * (number % 17)}
    return chat(user(*images, text), **{"max_tokens": 4 + number % 9, **EXTRA[number % len(EXTRA)]})


@pytest.fixture
def batch(llm: AsyncLLM, tmp_path: Path) -> Batch:
    return Batch(llm, tmp_path)


def test_results_equal_the_servers_responses(running: Running, batch: Batch) -> None:
    """64 mixed conversations, all endpoints, and what is refused: status and body, at most the ids differ."""
    asked = [(CHAT, conversation(number)) for number in range(64)] + OTHERS
    written(batch.input, (line(f"r{i}", body, url) for i, (url, body) in enumerate(asked)))
    progress = batch.run()
    got = results(batch.output)
    assert [result["custom_id"] for result in got] == [f"r{i}" for i in range(len(asked))]
    with running.http() as client:
        for (url, body), result in zip(asked, got, strict=True):
            want = client.post(url, json=body)
            assert result["error"] is None
            assert result["response"]["status_code"] == want.status_code
            assert without_own(result["response"]["body"]) == without_own(want.json(), near), json.dumps(body)[:200]
    assert progress.failures == {"HTTP 400": 6, "HTTP 404": 2, "HTTP 405": 1}
    assert len({result["response"]["request_id"] for result in got}) == len(asked)


def test_local_files(llm: AsyncLLM, tmp_path: Path) -> None:
    """Below the allowed directory, as for a server; the output is that of the same bytes."""
    allowed = tmp_path / "images"
    allowed.mkdir()
    random_image(40, 30, 7).save(allowed / "image.png")
    random_image(40, 30, 7).save(tmp_path / "outside.png")
    batch = Batch(llm, tmp_path, allowed_local_media_path=str(allowed))
    named = ["image.png", (allowed / "image.png").as_uri(), data_url(7), "../outside.png"]
    written(batch.input, (line(name[:50], chat(user({"image": name}, "what?"))) for name in named))
    assert batch.run().failures == {"HTTP 400": 1}
    *same, refused = results(batch.output)
    assert len({result["response"]["body"]["choices"][0]["message"]["content"] for result in same}) == 1
    assert refused["response"]["body"]["error"]["param"] == "messages[0].content[0]"


def test_bodies_are_limited_as_by_the_server(llm: AsyncLLM, tmp_path: Path) -> None:
    """A body beyond the limit is a 413, also where its line could be read."""
    batch = Batch(llm, tmp_path, max_body_bytes=2000)
    written(batch.input, [line("a", chat(user("x" * 3000))), line("b", chat(user("x")))])
    assert batch.run().failures == {"HTTP 413": 1}
    assert [result["response"]["status_code"] for result in results(batch.output)] == [413, 200]
