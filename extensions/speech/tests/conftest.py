"""The model at a module's `path`, here and in transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from corellm import LLM
from extensions.speech.tests.sounds import Oracle


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    """The model, loaded."""
    with LLM(str(path), dtype="float32") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def oracle(path: Path) -> Oracle:
    """The model, in transformers."""
    return Oracle(path)
