"""Maintenance of a loaded engine between steps: empty caches, inspect or change the model, read metrics, trace steps.

`LLM` and `AsyncLLM` inherit these methods and implement `_in_engine`, which runs a function in the thread that drives
the engine. Knows the caches and the model; knows no requests.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from corellm.engine.metrics import Metric, read_metrics
from corellm.errors import InvalidParameterError
from corellm.worker.trace import Trace

if TYPE_CHECKING:
    from corellm.engine.llm_engine import LLMEngine

_Result = TypeVar("_Result")


class Maintenance(ABC):
    """The methods of `LLM`."""

    engine: LLMEngine

    @abstractmethod
    def _in_engine(self, function: Callable[[LLMEngine], _Result]) -> _Result:
        """Call a function with the engine between two steps; returns its result."""

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; False, and nothing done, while requests are in flight."""
        return self._in_engine(reset_prefix_cache)

    def reset_mm_cache(self) -> None:
        """Forget processed items, and encoder outputs that no request in flight needs. Cached prefixes stay."""
        self._in_engine(reset_mm_cache)

    def apply_model(self, function: Callable[[Any], _Result]) -> list[_Result]:
        """Call a function with the model, an `nn.Module`; returns its result in a list of one, as there is one worker.

        A function that changes weights should be followed by `reset_prefix_cache()` and `reset_mm_cache()`.
        """
        return self._in_engine(partial(_apply_model, function))

    def get_metrics(self) -> list[Metric]:
        """The engine's counters and gauges: objects with `name` and `value`."""
        return read_metrics(self.engine)

    def start_profile(self, trace_file: str | os.PathLike[str] | None = None) -> None:
        """Begin a trace of what the model runs, by torch's profiler.

        Args:
            trace_file: where `stop_profile` writes it; None for a name with the time, in the current directory.

        Raises:
            InvalidParameterError: this process has a trace already, or `trace_file` cannot be written.
        """
        self._in_engine(partial(start_profile, trace_file))

    def stop_profile(self) -> Path:
        """End the trace and write it; returns its file, which <https://ui.perfetto.dev> shows.

        Raises:
            InvalidParameterError: there is no trace, or another thread began it.
        """
        return self._in_engine(stop_profile)


class AsyncMaintenance(ABC):
    """The methods of `AsyncLLM`: the same, awaited."""

    @abstractmethod
    async def _in_engine(self, function: Callable[[LLMEngine], _Result]) -> _Result:
        """Call a function with the engine in its thread, between two steps; returns its result."""

    async def reset_prefix_cache(self) -> bool:
        """As `LLM.reset_prefix_cache`."""
        return await self._in_engine(reset_prefix_cache)

    async def reset_mm_cache(self) -> None:
        """As `LLM.reset_mm_cache`."""
        await self._in_engine(reset_mm_cache)

    async def apply_model(self, function: Callable[[Any], _Result]) -> list[_Result]:
        """As `LLM.apply_model`; the function is called in the engine's thread."""
        return await self._in_engine(partial(_apply_model, function))

    async def get_metrics(self) -> list[Metric]:
        """As `LLM.get_metrics`."""
        return await self._in_engine(read_metrics)

    async def start_profile(self, trace_file: str | os.PathLike[str] | None = None) -> None:
        """As `LLM.start_profile`."""
        await self._in_engine(partial(start_profile, trace_file))

    async def stop_profile(self) -> Path:
        """As `LLM.stop_profile`."""
        return await self._in_engine(stop_profile)


def end_trace(engine: LLMEngine) -> None:
    """End a trace that is still running when the engine is closed."""
    trace, engine.trace = engine.trace, None
    if trace is not None:
        trace.close()


def reset_prefix_cache(engine: LLMEngine) -> bool:
    """As `LLM.reset_prefix_cache`."""
    _runner(engine)
    return engine.reset_prefix_cache()


def reset_mm_cache(engine: LLMEngine) -> None:
    """As `LLM.reset_mm_cache`."""
    _runner(engine)
    engine.reset_mm_cache()


def _apply_model(function: Callable[[Any], _Result], engine: LLMEngine) -> list[_Result]:
    return [function(_runner(engine).model)]


def start_profile(trace_file: str | os.PathLike[str] | None, engine: LLMEngine) -> None:
    """As `LLM.start_profile`."""
    _runner(engine)
    engine.trace = Trace(trace_file)


def stop_profile(engine: LLMEngine) -> Path:
    """As `LLM.stop_profile`."""
    if engine.trace is None:
        raise InvalidParameterError("no trace is running; call start_profile() first")
    file = engine.trace.stop()
    engine.trace = None
    return file


def _runner(engine: LLMEngine) -> Any:
    return engine.runner  # raises if the engine was shut down
