"""The oracle of these tests: transformers' own processors, in a process of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from corellm_qwen_vl.hf_oracle import hf_process


@pytest.fixture(scope="session")
def ask_hf() -> Callable[..., Any]:
    """`ask(checkpoint, text=..., images=..., videos=..., ...)`: the processor's arrays, or what it raised."""

    def ask(*checkpoint: Any, **request: Any) -> Any:
        try:
            return hf_process(*checkpoint, **request)
        except Exception as error:  # the test decides what it means
            return error

    return ask
