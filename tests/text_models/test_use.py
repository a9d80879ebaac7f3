"""A text-only checkpoint on the command line and over HTTP."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from corellm import AsyncLLM
from corellm.cli import main
from corellm_testing.tiny_text import make_tiny_checkpoint
from extensions.server.tests.conftest import MODEL, image_part, serving
from tests.fixtures import random_image


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GPT-2."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), architecture="GPT2LMHeadModel")


def test_inspect(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report names the checkpoint's architecture and the core's adapter, and has no item."""
    assert main(["inspect", str(checkpoint), "What shape?"]) == 0
    out = capsys.readouterr().out
    assert "GPT2LMHeadModel, float32" in out
    assert "corellm.text_models:TextModel of corellm" in out
    assert "image 0" not in out


def test_run(checkpoint: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A question gets output; an image is refused in a line."""
    assert main(["run", str(checkpoint), "What shape?", "--max-tokens", "4", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.strip()
    random_image(20, 20, 0).save(tmp_path / "image.png")
    assert main(["run", str(checkpoint), str(tmp_path / "image.png"), "What is this?"]) == 1
    assert "no image" in capsys.readouterr().err


def test_serve(checkpoint: Path) -> None:
    """A conversation gets output; one with an image is a 400 that says so."""
    with closing(AsyncLLM(str(checkpoint))) as llm, serving(llm) as running:
        body = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "What shape?"}]}
        response = running.post("/v1/chat/completions", body)
        assert response.status_code == 200
        assert response.json()["usage"]["completion_tokens"] > 0
        body["messages"] = [{"role": "user", "content": [image_part(0), {"type": "text", "text": "What?"}]}]
        response = running.post("/v1/chat/completions", body)
    assert response.status_code == 400
    assert "no image" in response.json()["error"]["message"]
