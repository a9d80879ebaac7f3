"""The oracle of these tests: transformers' own processors, in a process of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from corellm_qwen_vl.hf_oracle import HFProcessors


@pytest.fixture(scope="session")
def ask_hf() -> Iterator[Callable[..., Any]]:
    """`ask(checkpoint, text=..., images=..., videos=..., ...)`: the processor's arrays, or what it raised."""
    processors = HFProcessors()

    def ask(*checkpoint: Any, **request: Any) -> Any:
        try:
            return processors(*checkpoint, **request)
        except Exception as error:  # the test decides what it means
            return error

    yield ask
    processors.close()
