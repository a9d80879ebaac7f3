"""A load that fails leaves nothing behind that runs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from corellm import LLM
from corellm.engine.process.client import ProcessLLM
from corellm.errors import CheckpointError
from corellm.templates.renderer import TemplateRenderer


@pytest.mark.parametrize(
    ("make", "module", "step"),
    [
        (LLM, "corellm.loading.loading", "corellm.loading.loading.make_input_processor"),
        (ProcessLLM, "corellm.engine.process.front_end", "corellm.loading.opening.make_input_processor"),
    ],
)
def test_threads_and_templates_end(
    tiny_llava: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Any], module: str, step: str
) -> None:
    """What was begun before the failing step is closed, in this process and where the engine has its own."""
    executors: list[ThreadPoolExecutor] = []
    closed: list[TemplateRenderer] = []

    class Executor(ThreadPoolExecutor):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            executors.append(self)

    def fail(*_: Any) -> None:
        executors[0].submit(int)
        raise KeyError("broken")

    monkeypatch.setattr(f"{module}.ThreadPoolExecutor", Executor)
    monkeypatch.setattr(TemplateRenderer, "close", lambda self: closed.append(self))
    monkeypatch.setattr(step, fail)
    with pytest.raises(CheckpointError, match="KeyError"):
        make(str(tiny_llava), dtype="float32")
    assert len(closed) == 1
    for thread in executors[0]._threads:
        thread.join(600)
        assert not thread.is_alive()
