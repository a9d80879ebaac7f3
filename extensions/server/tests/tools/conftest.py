"""A model whose template is as Qwen's, for long prompts; and a server of it that writes what it is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from corellm import AsyncLLM
from corellm_llava.tiny import make_tiny_checkpoint
from extensions.server.tests.conftest import Running, serving
from extensions.server.tests.scripted import ScriptedLLM
from tests.templates.published import QWEN

Writing = Callable[[str], tuple[Running, ScriptedLLM]]


@pytest.fixture(scope="session")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncLLM]:
    """The model, of random weights."""
    path = make_tiny_checkpoint(tmp_path_factory.mktemp("tools") / "model")
    (path / "chat_template.jinja").write_text(QWEN)
    config = json.loads((path / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 4096
    (path / "config.json").write_text(json.dumps(config))
    llm = AsyncLLM(str(path), dtype="float32", enable_prefix_caching=True)
    yield llm
    llm.close()


@pytest.fixture(scope="module")
def scripted(loaded: AsyncLLM) -> ScriptedLLM:
    """The same, with outputs that are given."""
    return ScriptedLLM(loaded)


@pytest.fixture(scope="module")
def running(scripted: ScriptedLLM) -> Iterator[Running]:
    """A server of those outputs."""
    with serving(scripted, allow_request_templates=True) as server:
        yield server


@pytest.fixture(scope="module")
def writing(loaded: AsyncLLM) -> Iterator[Writing]:
    """A function for a server of outputs whose calls have the form of a parser, and for its outputs."""
    with ExitStack() as servers:

        @cache
        def server(parser: str) -> tuple[Running, ScriptedLLM]:
            scripted = ScriptedLLM(loaded)
            return servers.enter_context(serving(scripted, tool_call_parser=parser)), scripted

        yield server
