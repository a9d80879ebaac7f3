"""Maintenance of a loaded engine between steps: empty caches, inspect or change the model, trace steps.

Called from the thread that drives the engine. Knows the caches and the model; knows no requests.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from corellm.errors import InvalidParameterError
from corellm.worker.trace import Trace

if TYPE_CHECKING:
    from corellm.engine.llm_engine import LLMEngine

_Result = TypeVar("_Result")


def reset_prefix_cache(engine: LLMEngine) -> bool:
    """Forget every cached prefix; False, and nothing done, while requests are in flight."""
    _runner(engine)
    return engine.reset_prefix_cache()


def reset_mm_cache(engine: LLMEngine) -> None:
    """Forget processed items, and encoder outputs that no request in flight needs. Cached prefixes stay."""
    _runner(engine)
    engine.reset_mm_cache()


def apply_model(engine: LLMEngine, function: Callable[[Any], _Result]) -> list[_Result]:
    """Call a function with the model, an `nn.Module`; returns its result in a list of one, as there is one worker.

    A function that changes weights leaves cached prefixes and encoder outputs of the old ones: reset both caches.
    """
    return [function(_runner(engine).model)]


def start_profile(engine: LLMEngine, trace_file: str | os.PathLike[str] | None = None) -> None:
    """Begin a trace of the steps."""
    _runner(engine)
    engine.trace = Trace(trace_file)


def stop_profile(engine: LLMEngine) -> Path:
    """End the trace and write it; returns its file."""
    if engine.trace is None:
        raise InvalidParameterError("no trace is running; call start_profile() first")
    file = engine.trace.stop()
    engine.trace = None
    return file


def end_trace(engine: LLMEngine) -> None:
    """End a trace that is still running when the engine is closed."""
    trace, engine.trace = engine.trace, None
    if trace is not None:
        trace.close()


def _runner(engine: LLMEngine) -> Any:
    return engine.runner  # raises if the engine was shut down
