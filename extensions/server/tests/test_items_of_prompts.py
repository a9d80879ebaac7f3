"""A model whose encoder reads the prompt, behind a server, its engine in another process: outputs and cached tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corellm import LLM, SamplingParams
from corellm.engine.process.client import ProcessLLM
from corellm_blip2.instruct.tiny import make_tiny_checkpoint
from extensions.server.tests.conftest import Running, chat, image_part, serving, user
from tests.fixtures import random_image

QUESTIONS = ("What is unusual about this image?", "where is the circle?")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny InstructBLIP."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("instruct"))


@pytest.fixture(scope="module")
def running(checkpoint: Path) -> Iterator[Running]:
    """It, served."""
    llm = ProcessLLM(str(checkpoint), dtype="float32", block_size=4)
    with serving(llm, allowed_mm_processor_kwargs=["qformer_text"]) as server:
        yield server
    llm.close()


def ask(running: Running, question: str, **more: Any) -> dict[str, Any]:
    body = chat(user(image_part(3), {"type": "text", "text": question}), max_tokens=12, **more)
    response = running.post("/v1/chat/completions", body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def text_of(response: dict[str, Any]) -> str:
    text: str = response["choices"][0]["message"]["content"]
    return text


def test_each_question_has_its_own_output(running: Running, checkpoint: Path) -> None:
    """The texts are those of offline prompts; of the image, only the same question finds anything in the cache."""
    found = [ask(running, question) for question in (*QUESTIONS, *QUESTIONS)]
    with LLM(str(checkpoint), dtype="float32") as llm:
        prompts = [{"prompt": text, "multi_modal_data": {"image": random_image(40, 30, 3)}} for text in QUESTIONS]
        wanted = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)
    assert [text_of(response) for response in found] == [output.outputs[0].text for output in wanted] * 2
    assert text_of(found[0]) != text_of(found[1])
    cached = [response["usage"]["prompt_tokens_details"]["cached_tokens"] for response in found]
    assert cached[:2] == [0, 0]
    assert min(cached[2:]) >= 8


def test_a_request_may_give_the_encoder_another_text(running: Running) -> None:
    """`mm_processor_kwargs` of a request; a wrong one is answered with 400."""
    other = ask(running, QUESTIONS[0], mm_processor_kwargs={"qformer_text": QUESTIONS[1]})
    assert text_of(other) != text_of(ask(running, QUESTIONS[0]))
    body = chat(user(image_part(3), {"type": "text", "text": "What?"}), mm_processor_kwargs={"qformer_text": 3})
    response = running.post("/v1/chat/completions", body)
    assert response.status_code == 400
    assert "qformer_text must be text" in response.json()["error"]["message"]
