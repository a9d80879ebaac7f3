"""Servers of models that pool: an embedder, here and in a process of its own, a classifier of three labels, a reranker.

Processes end with their module: other tests look for processes that are left.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corellm import AsyncLLM
from corellm.engine.process.client import ProcessLLM
from extensions.pooling.tests.checkpoints import WIDTH, random_tensor, rewritten
from extensions.server.tests.conftest import MODEL, Running, serving

ENGINE: dict[str, Any] = {"dtype": "float32", "block_size": 8, "max_num_seqs": 16, "max_num_batched_tokens": 256}
TEMPLATE = "Query: {query}\nDocument: {document}\nFits: "
RERANKER: dict[str, Any] = {
    "convert": "classify", "hf_overrides": {"classifier_from_token": ["a", "c"], "method": "from_2_way_softmax"},
}  # fmt: skip


@pytest.fixture(scope="session")
def embedder(tiny_llava: Path) -> Iterator[Running]:
    """It embeds."""
    llm = AsyncLLM(str(tiny_llava), convert="embed", **ENGINE)
    with serving(llm) as running:
        yield running
    llm.close()


@pytest.fixture(scope="module")
def embedder_apart(tiny_llava: Path) -> Iterator[Running]:
    """The same, in a process of its own."""
    llm = ProcessLLM(str(tiny_llava), convert="embed", **ENGINE)
    with serving(llm) as running:
        yield running
    llm.close()


@pytest.fixture(scope="session")
def labelled(tiny_llava: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a head of three labels."""
    return rewritten(
        tiny_llava,
        tmp_path_factory.mktemp("labelled"),
        architecture="LlavaForSequenceClassification",
        heads={"score.weight": random_tensor(3, WIDTH)},
        config={"id2label": {"0": "cat", "1": "dog", "2": "bird"}},
    )


@pytest.fixture(scope="session")
def classifier(labelled: Path) -> Iterator[Running]:
    """It classifies; its checkpoint needs no option."""
    llm = AsyncLLM(str(labelled), **ENGINE)
    with serving(llm) as running:
        yield running
    llm.close()


@pytest.fixture(scope="session")
def reranker(tiny_llava: Path) -> Iterator[Running]:
    """It reads query and document together."""
    llm = AsyncLLM(str(tiny_llava), **RERANKER, **ENGINE)
    with serving(llm, score_template=TEMPLATE) as running:
        yield running
    llm.close()


def ask(running: Running, path: str, **body: Any) -> Any:
    """The response to a request that succeeds."""
    response = running.post(path, {"model": MODEL, **body})
    assert response.status_code == 200, response.text
    return response.json()
