"""What requests to models that pool hold, and what they keep from others."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from corellm_server import pooled, scoring
from extensions.server.tests.conftest import MODEL, Running, serving
from extensions.server.tests.pooling.conftest import ask
from extensions.server.tests.test_metrics import scrape, total
from extensions.server.tests.test_promises import error_of
from tests.fixtures import wait_until

ROWS = {"input": [[5] * 1024], "task": "token_embed"}
"""65,536 numbers: as an array 256 KiB, as base64 342 KiB, as JSON more than a MiB."""


def test_prompts_are_cut_once_they_are_prepared(embedder: Running) -> None:
    """What is not kept of long inputs is neither held nor counted."""
    with serving(embedder.service.client) as running:
        response = ask(running, "/v1/embeddings", input=["word " * 1500] * 3, truncate_prompt_tokens=5)
        assert response["usage"]["prompt_tokens"] == 15
        wait_until(lambda: total(scrape(running), "requests_total") >= 1)
        assert total(scrape(running), "request_prompt_tokens_sum") == 15


def test_few_inputs_are_prepared_at_once(embedder: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others need not wait for a thread until all inputs of a request are prepared."""
    running, inside, most = embedder, 0, 0
    prompt = running.service.preparation.prompt

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        try:
            return await prompt(*args, **kwargs)
        finally:
            inside -= 1

    monkeypatch.setattr(running.service.preparation, "prompt", counted)
    monkeypatch.setattr(pooled, "_PREPARED_AT_ONCE", 3)
    assert len(ask(running, "/v1/embeddings", input=["a"] * 20)["data"]) == 20
    assert len(ask(running, "/score", text_1="a", text_2=["b"] * 20)["data"]) == 20
    assert most == 3


def test_results_count_as_held(embedder: Running) -> None:
    """Arrays, and the response until the client has read it."""
    with serving(embedder.service.client, max_held_bytes=700 << 10) as running:
        assert ask(running, "/pooling", **ROWS, encoding_format="base64")["data"][0]["shape"] == [1024, 64]
        wait_until(lambda: not running.service.intake.num_bytes)
        for body in (ROWS, {**ROWS, "input": ROWS["input"] * 3, "encoding_format": "base64"}):
            assert "too large together" in error_of(running.post("/pooling", {"model": MODEL, **body}), 503)["message"]
            wait_until(lambda: not running.service.intake.num_bytes)


def test_late_interaction_keeps_nobody_waiting(embedder: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long texts are compared in a thread, not in the event loop."""
    outside: list[bool] = []

    def compare(query: np.ndarray, document: np.ndarray) -> float:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            outside.append(True)
        return 0.0

    monkeypatch.setattr(scoring, "max_sim", compare)
    ask(embedder, "/score", text_1="a", text_2=["b", "c"], late_interaction=True)
    assert outside == [True, True]
