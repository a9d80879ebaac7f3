"""LangChain's `ChatOpenAI`, litellm and the example get the demo model to read numbers in images."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from corellm import AsyncLLM
from extensions.server.tests.conftest import serving

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Where the demo model is served."""
    with closing(AsyncLLM("demo", dtype="float32")) as llm, serving(llm) as running:
        yield running.url


def printed(*arguments: str) -> str:
    """What a Python program prints."""
    ran = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def outputs(url: str) -> Any:
    """What the two got."""
    return json.loads(
        printed("-m", "extensions.server.tests.other_clients", url, "demo/images/407.png").splitlines()[-1]
    )


@pytest.mark.parametrize("client", ["langchain", "litellm"])
def test_a_question_about_an_image(outputs: Any, client: str) -> None:
    """Whole, streamed and asynchronous, the number is the image's; numbers of tokens agree; errors are its own."""
    got = outputs[client]
    texts = [got["whole"], got["streamed"], *got["async"], *got.get("batch", ())]
    assert {text.strip() for text in texts} == {"407"}
    assert got["later turn"].strip()
    whole, streamed = got["usage"]
    if client == "langchain":
        whole, streamed = whole["total_tokens"], streamed["total_tokens"]
    assert whole == streamed > 0
    assert got["reason"] == "stop"
    assert ("temperature" if client == "langchain" else "'other'") in got["refused"]


def test_the_example(url: str) -> None:
    """It prints the number of each image, in order."""
    images = ["demo/images/407.png", "demo/images/29.png"]
    text = printed("examples/openai_client.py", "What number is written here?", *images, "--url", url + "/v1")
    assert text.splitlines() == [f"{images[0]}: 407", f"{images[1]}: 29"]
