"""Logits processors over HTTP: those that are registered, by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corellm.plugin.extensions import load_extensions
from corellm.serving import AsyncLLM
from extensions.decoding.tests.extension import Processors
from extensions.server.tests.conftest import Running, chat, serving, user


@pytest.fixture(scope="module")
def with_processors(tiny_llava: Path) -> Iterator[Running]:
    extension = Processors()
    load_extensions().register(extension, name="the extension of the tests")
    llm = AsyncLLM(str(tiny_llava), dtype="float32", block_size=8, max_num_seqs=16)
    try:
        with serving(llm) as running:
            yield running
    finally:
        llm.close()
        load_extensions().unregister(extension)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/completions"])
def test_names_and_arguments(with_processors: Running, path: str) -> None:
    """In each API; with other arguments the output is another one."""
    bodies = {
        "/v1/chat/completions": {"messages": user("ten"), "max_tokens": 8},
        "/v1/responses": {"input": "ten", "max_output_tokens": 8},
        "/v1/completions": {"prompt": "ten", "max_tokens": 8},
    }
    texts = []
    for processors in ([], ["only"], [{"name": "only", "arguments": {"divisor": 5}}]):
        body = {"model": "tiny", "temperature": 0, "logits_processors": processors, **bodies[path]}
        got = with_processors.post(path, body)
        assert got.status_code == 200, got.text
        made: Any = got.json()
        texts.append(str(made.get("choices") or made["output"][0]["content"]))
    assert len({*texts}) == 3


def test_tokens_are_as_processed(with_processors: Running) -> None:
    """Every token is one that the processor lets come."""
    body = chat(user("ten"), logits_processors=[{"name": "only", "arguments": {"divisor": 7}}], return_token_ids=True)
    made = with_processors.post("/v1/chat/completions", body).json()
    (choice,), num_prompt = made["choices"], len(made["prompt_token_ids"])
    assert [token % 7 for token in choice["token_ids"]] == [
        (num_prompt + i) % 7 for i in range(len(choice["token_ids"]))
    ]
    assert len(choice["token_ids"]) > 1


@pytest.mark.parametrize(
    ("processors", "status", "words"),
    [
        (["lost"], 400, "registers 'lost'"), ([{"name": "only", "arguments": {"x": 1}}], 400, "only takes divisor"),
        ([{"name": "only", "function": "f"}], 400, "takes functions, names"), ([3], 400, "logits_processors"),
        (["broken"], 500, "the logits processor broken failed"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(with_processors: Running, processors: list[Any], status: int, words: str) -> None:
    """The field at fault; a processor that fails is the server's fault, and it serves on."""
    got = with_processors.post("/v1/chat/completions", chat(user("ten"), logits_processors=processors))
    assert got.status_code == status, got.text
    error = got.json()["error"]
    assert words in error["message"] or status == 500
    assert status == 500 or error["param"].startswith("logits_processors")
    assert with_processors.post("/v1/chat/completions", chat(user("ten"))).status_code == 200
