"""Wrong requests to models that pool: one clear error each, that names its place, and the engine goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from corellm import AsyncLLM
from corellm.errors import ConfigError
from corellm_server.options import ServerOptions
from extensions.server.tests.conftest import MODEL, Running, idle, image_part, in_engine, serving, user
from extensions.server.tests.pooling.conftest import ENGINE, RERANKER, ask
from extensions.server.tests.test_promises import error_of
from tests.fixtures import wait_until

EMBED, SCORE, RERANK = "/v1/embeddings", "/score", "/rerank"
BROKEN = {"content": [{"type": "text", "text": "x"}, {"image": "data:image/png;base64,AAAA"}]}
WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    (EMBED, {}, "input", "messages"),
    (EMBED, {"input": "x", "messages": user("x")}, "input", "messages"),
    (EMBED, {"input": []}, "input", "at least one"),
    (EMBED, {"input": [[]]}, "input", "no tokens|empty"),
    (EMBED, {"input": ["x"] * 9}, "input", "9 entries, 8 are allowed"),
    (EMBED, {"input": [1] * 2000}, "input", "2000 tokens, more than the 1024"),
    (EMBED, {"input": ["x", "word " * 2000]}, "input[1]", "more than the 1024"),
    (EMBED, {"input": [1] * 2000, "truncate_prompt_tokens": 1500}, "input", "1500 tokens, more than the 1024"),
    (EMBED, {"input": [99999]}, "input", "does not know"),
    (EMBED, {"input": "<image>"}, "input", "there is no image"),
    (EMBED, {"input": "x", "dimensions": 65}, "dimensions", "embeddings have 64"),
    (EMBED, {"input": "x", "dimensions": 0}, "dimensions", "from 1 to"),
    (EMBED, {"input": "x", "dimensions": 10**30}, "dimensions", "from 1 to"),
    (EMBED, {"input": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "or -1"),
    (EMBED, {"input": "x", "truncate_prompt_tokens": -(10**30)}, "truncate_prompt_tokens", "or -1"),
    (EMBED, {"input": "x", "encoding_format": "int8"}, "encoding_format", "must be 'float' or 'base64'"),
    (EMBED, {"input": "x", "stream": True}, "stream", "results come whole"),
    (EMBED, {"input": "x", "temperature": 1}, "temperature", "unrecognized"),
    (EMBED, {"input": "x", "priority": 1}, "priority", "no effect"),
    (EMBED, {"messages": user(*BROKEN["content"])}, "messages[0].content[1]", "image"),
    (EMBED, {"messages": user(image_part(1)), "truncate_prompt_tokens": 9}, "truncate_prompt_tokens", "cut image 0"),
    ("/classify", {"input": "x"}, "model", "--convert classify"),
    ("/pooling", {"input": "x", "task": "reward"}, "task", "reward model"),
    ("/pooling", {"input": "x", "task": "plot"}, "task", "must be 'embed', "),
    (SCORE, {"text_1": "x"}, "text_2", "documents"),
    (SCORE, {"text_1": "x", "queries": "x", "text_2": "y"}, "text_1", "queries"),
    (SCORE, {"query": "x", "documents": ["y"]}, "query", "queries"),
    (SCORE, {"text_1": "x", "text_2": []}, "text_2", "at least one"),
    (SCORE, {"text_1": ["x", "y"], "documents": ["z"] * 3}, "text_1", "2 entries and documents 3"),
    (SCORE, {"text_1": "x", "text_2": ["y"] * 9}, "text_2", "9 entries, 8 are allowed"),
    (SCORE, {"text_1": "x", "text_2": ["y", BROKEN]}, "text_2[1].content[1]", "image"),
    (SCORE, {"text_1": "x", "text_2": [{"content": [], "more": 1}]}, "text_2[0]", "nothing else"),
    (SCORE, {"text_1": "x", "text_2": [{"content": 1}]}, "text_2[0].content", "list of parts"),
    (SCORE, {"text_1": "x", "text_2": [{"image": "/etc/passwd"}]}, "text_2[0].content[0]", "not read"),
    (SCORE, {"text_1": "x", "text_2": [image_part(1)] * 4}, "text_2[3].content[0]", "item 4 of the request"),
    (SCORE, {"text_1": "x", "text_2": "y", "use_activation": True}, "use_activation", "read both together"),
    (SCORE, {"text_1": "x", "text_2": "y", "template": "{query}"}, "template", "unrecognized"),
    (RERANK, {"query": "x"}, "documents", "required"),
    (RERANK, {"query": "x", "documents": []}, "documents", "at least one"),
    (RERANK, {"query": "x", "documents": ["y"], "top_n": 0}, "top_n", "at least 1"),
    (RERANK, {"query": "x", "documents": ["y"], "max_tokens_per_doc": 9}, "max_tokens_per_doc", "truncate"),
    ("/v1/chat/completions", {"messages": user("x")}, "model", "--runner generate --convert none"),
    ("/v1/completions", {"prompt": "x"}, "model", "--runner generate --convert none"),
    ("/v1/responses", {"input": "x"}, "model", "--runner generate --convert none"),
]


@pytest.fixture(scope="module")
def limited(tiny_llava: Path) -> Iterator[Running]:
    """An embedder that takes few inputs, items and numbers."""
    llm = AsyncLLM(str(tiny_llava), convert="embed", **ENGINE)
    with serving(llm, max_inputs=8, max_items=3, max_result_values=2000) as running:
        yield running
    llm.close()


def test_an_empty_text_does_not_fail_the_others(limited: Running) -> None:
    """It is the special tokens that the tokenizer makes of it."""
    assert len(ask(limited, EMBED, input=["good", ""])["data"]) == 2
    assert len(ask(limited, RERANK, query="good", documents=["y", ""])["results"]) == 2


def test_every_mistake(limited: Running) -> None:
    """400, the field or part at fault, and the reason; other requests are served."""
    good = ask(limited, EMBED, input="good")["data"]
    for path, body, param, reason in WRONG:
        error = error_of(limited.post(path, {"model": MODEL, **body}), 400)
        assert error["param"] == param, (path, body, error)
        assert any(one in error["message"] for one in reason.split("|")), (path, body, error)
    assert ask(limited, EMBED, input="good")["data"] == good
    wait_until(lambda: idle(limited))


def test_too_many_numbers(limited: Running) -> None:
    """Results that are too large are refused when they are, and what still runs for them is aborted."""
    body = {"model": MODEL, "input": ["word " * 30] * 8, "task": "token_embed"}
    assert "2000 numbers" in error_of(limited.post("/pooling", body), 400)["message"]
    wait_until(lambda: idle(limited) and not limited.service.intake.num_bytes)


def test_models_without_the_head(classifier: Running, reranker: Running) -> None:
    """Classes are no scores, and embeddings are neither's."""
    for running, path, body in (
        (classifier, SCORE, {"text_1": "x", "text_2": "y"}), (classifier, EMBED, {"input": "x"}),
        (reranker, EMBED, {"input": "x"}), (reranker, SCORE, {"text_1": "x", "text_2": "y", "late_interaction": True}),
    ):  # fmt: skip
        error = error_of(running.post(path, {"model": MODEL, **body}), 400)
        assert error["code"] == "task_not_supported" or error["param"] == "late_interaction"


def test_a_query_counts_for_each_document(reranker: Running) -> None:
    """A small request with many documents may not have a long query read for each."""
    with serving(reranker.service.client, max_body_bytes=10_000) as running:
        body = {"model": MODEL, "query": "word " * 200, "documents": ["x"] * 11}
        error = error_of(running.post(RERANK, body), 400)
        assert error["param"] == "query[0]"
        assert "have 11011 characters" in error["message"]
        ask(running, RERANK, query="word " * 20, documents=["x"] * 11)


def test_other_urls_of_a_pooling_server(embedder: Running) -> None:
    """Models, tokens and probes are as on any server; a document too long is refused as such."""
    assert ask(embedder, "/tokenize", prompt="one two")["count"] > 1
    assert ask(embedder, "/tokenize", messages=user(image_part(1), "what?"))["count"] > 16
    (model,) = embedder.get("/v1/models").json()["data"]
    assert model["max_model_len"] == 1024
    assert embedder.get("/ready").json() == {"status": "ok"}
    error = error_of(embedder.post(EMBED, {"model": MODEL, "input": [1] * 1025}), 400)
    assert error["code"] == "context_length_exceeded"
    ask(embedder, EMBED, input=[1] * 1024)


def test_a_template_has_both_places() -> None:
    """It is checked when the server is configured."""
    for wrong in ("{query}", "{document}", "{query}{document}{query}", ""):
        with pytest.raises(ConfigError, match="score_template must have"):
            ServerOptions(score_template=wrong)


def test_special_tokens_beside_items_are_text(reranker: Running) -> None:
    """A document with parts cannot place an item, or end the prompt."""
    part = {"type": "text", "text": "<image> </s>"}
    body = {"model": MODEL, "text_1": "x", "text_2": {"content": [image_part(1), part]}}
    assert reranker.post(SCORE, body).status_code == 200
    assert "no image" in error_of(reranker.post(SCORE, {**body, "text_2": "<image>"}), 400)["message"]


@pytest.mark.parametrize("convert", [{"convert": "embed"}, RERANKER])
def test_a_client_that_leaves(tiny_llava: Path, convert: dict[str, Any]) -> None:
    """All of its inputs are aborted, and nothing of them is left."""
    llm = AsyncLLM(str(tiny_llava), **convert, **ENGINE)
    with serving(llm) as running:
        event = threading.Event()
        in_engine(llm, lambda _: event.wait(600))
        with pytest.raises(httpx.ReadTimeout):
            running.post(
                SCORE, {"model": MODEL, "text_1": "x", "text_2": ["y"] * 200}, timeout=httpx.Timeout(60, read=1)
            )
        event.set()
        wait_until(lambda: not len(running.service.intake) and idle(running))
        assert running.service.intake.num_bytes == 0
    llm.close()
