"""An encoder-decoder behind a server, its engine in another process: outputs, usage and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from corellm import LLM, SamplingParams
from corellm.engine.process.client import ProcessLLM
from corellm_florence2.tiny import make_tiny_checkpoint
from extensions.server.tests.conftest import Running, chat, image_part, serving, user
from tests.fixtures import random_image


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Florence-2."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("florence2"))


@pytest.fixture(scope="module")
def running(checkpoint: Path) -> Iterator[Running]:
    """It, served."""
    llm = ProcessLLM(str(checkpoint), dtype="float32")
    with serving(llm) as server:
        yield server
    llm.close()


def test_answers_and_usage(running: Running, checkpoint: Path) -> None:
    """The same text as offline; the prompt's tokens are those that the encoder reads, its image's included."""
    body = chat(user(image_part(3), {"type": "text", "text": "<OD>"}), max_tokens=12)
    found = running.post("/v1/chat/completions", body).json()
    with LLM(str(checkpoint), dtype="float32") as llm:
        prompt = {"prompt": "<OD>", "multi_modal_data": {"image": random_image(40, 30, 3)}}
        (wanted,) = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)
    assert found["choices"][0]["message"]["content"] == wanted.outputs[0].text
    assert found["usage"]["prompt_tokens"] == len(wanted.prompt_token_ids) == 55
    again = running.post("/v1/chat/completions", body).json()
    assert again["choices"] == found["choices"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 55


def test_a_prompt_that_is_too_long(running: Running) -> None:
    """400 before the engine gets it, with the encoder's positions; the next request has its answer."""
    response = running.post("/v1/chat/completions", chat(user("one two " * 400)))
    assert response.status_code == 400
    assert "512 positions" in response.json()["error"]["message"]
    assert running.post("/v1/chat/completions", chat(user("What?"))).status_code == 200


def test_outputs_have_room_beside_a_long_prompt(running: Running) -> None:
    """The limit of output tokens is the decoder's: the encoder's prompt takes none of it."""
    body = chat(user("one two three " * 60), max_tokens=400)
    response = running.post("/v1/chat/completions", body)
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["prompt_tokens"] > 112, "with the output more than the 512 positions"
    assert running.post("/v1/chat/completions", chat(user("What?"), max_tokens=600)).status_code == 400
