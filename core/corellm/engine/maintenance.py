"""Maintenance of a loaded engine between steps: empty caches, inspect or change the model, metrics, traces.

`LLM` and `AsyncLLM` inherit these methods and implement `in_engine`, which runs a function in the thread that drives
the engine. Knows the caches and the model; knows no requests.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from corellm.engine.metrics import Metric, read_metrics
from corellm.errors import InvalidParameterError
from corellm.plugin.calls import CallOfExtension
from corellm.worker.trace import Trace

if TYPE_CHECKING:
    from corellm.engine.llm_engine import LLMEngine
    from corellm.frontend.input_processor import ProcessedPrompt

_Result = TypeVar("_Result")


class Maintenance(ABC):
    """The methods of `LLM`."""

    engine: LLMEngine

    # documented at `corellm_training.calls` and `corellm_lora.calls`
    sleep: CallOfExtension[None] = CallOfExtension("training")
    wake_up: CallOfExtension[None] = CallOfExtension("training")
    is_sleeping: CallOfExtension[bool] = CallOfExtension("training")
    update_weights: CallOfExtension[None] = CallOfExtension("training")
    add_lora: CallOfExtension[bool] = CallOfExtension("lora")
    remove_lora: CallOfExtension[bool] = CallOfExtension("lora")
    list_loras: CallOfExtension[set[int]] = CallOfExtension("lora")
    pin_lora: CallOfExtension[bool] = CallOfExtension("lora")

    @abstractmethod
    def in_engine(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call a function with the engine, and further arguments, between two steps; returns its result."""

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; False, and nothing done, while requests are in flight."""
        return self.in_engine(reset_prefix_cache_of)

    def reset_mm_cache(self) -> None:
        """Forget processed items, and encoder outputs that no request in flight needs. Cached prefixes stay."""
        self.in_engine(_reset_mm_cache)

    def apply_model(self, function: Callable[[Any], _Result]) -> list[_Result]:
        """Call a function with the model, an `nn.Module`; returns its result in a list of one, as there is one worker.

        A function that changes weights should be followed by `reset_prefix_cache()` and `reset_mm_cache()`.
        """
        return self.in_engine(_apply_model, function)

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
        self.in_engine(_start_profile, trace_file)

    def stop_profile(self) -> Path:
        """End the trace and write it; returns its file, which <https://ui.perfetto.dev> shows.

        Raises:
            InvalidParameterError: there is no trace, or another thread began it.
        """
        return Path(self.in_engine(_stop_profile))


class AsyncMaintenance(ABC):
    """The methods of `AsyncLLM`: the same, awaited."""

    sleep: CallOfExtension[Awaitable[None]] = CallOfExtension("training")
    wake_up: CallOfExtension[Awaitable[None]] = CallOfExtension("training")
    is_sleeping: CallOfExtension[Awaitable[bool]] = CallOfExtension("training")
    update_weights: CallOfExtension[Awaitable[None]] = CallOfExtension("training")
    add_lora: CallOfExtension[Awaitable[bool]] = CallOfExtension("lora")
    remove_lora: CallOfExtension[Awaitable[bool]] = CallOfExtension("lora")
    list_loras: CallOfExtension[Awaitable[set[int]]] = CallOfExtension("lora")
    pin_lora: CallOfExtension[Awaitable[bool]] = CallOfExtension("lora")

    @abstractmethod
    async def in_engine(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call a function with the engine, and further arguments, in its thread between two steps.

        Where that is in another process, the function is one of a module, and arguments and result are plain data.
        """

    async def in_engine_of(self, prompt: ProcessedPrompt, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """As `in_engine`, but of several engines only in the one that requests with this prompt go to."""
        return await self.in_engine(function, *arguments)

    def repeat_in_new_engines(self, name: str, function: Callable[..., Any], *arguments: Any) -> None:  # noqa: B027
        """Have engines that are started later call a function, as `in_engine` does, before they have requests.

        Of several calls with one name the last one counts. Where there is a single engine, there is nothing to do.
        """

    async def reset_prefix_cache(self) -> bool:
        """As `LLM.reset_prefix_cache`."""
        return await self.in_engine(reset_prefix_cache_of)

    async def reset_mm_cache(self) -> None:
        """As `LLM.reset_mm_cache`."""
        await self.in_engine(_reset_mm_cache)

    async def apply_model(self, function: Callable[[Any], _Result]) -> list[_Result]:
        """As `LLM.apply_model`; the function is called in the engine's thread."""
        return await self.in_engine(_apply_model, function)

    async def get_metrics(self) -> list[Metric]:
        """As `LLM.get_metrics`."""
        return await self.in_engine(read_metrics)

    async def get_metrics_by_replica(self) -> Mapping[str, Sequence[Metric]]:
        """The metrics of each of several engines, by its name; of the only one by an empty name."""
        return {"": await self.get_metrics()}

    async def start_profile(self, trace_file: str | os.PathLike[str] | None = None) -> None:
        """As `LLM.start_profile`."""
        await self.in_engine(_start_profile, trace_file if trace_file is None else os.fspath(trace_file))

    async def stop_profile(self) -> Path:
        """As `LLM.stop_profile`."""
        return Path(await self.in_engine(_stop_profile))


def end_trace(engine: LLMEngine) -> None:
    """End a trace that is still running when the engine is closed."""
    trace, engine.trace = engine.trace, None
    if trace is not None:
        trace.close()


def reset_prefix_cache_of(engine: LLMEngine) -> bool:
    """Forget every cached prefix of an engine, in its thread."""
    _runner(engine)
    return engine.reset_prefix_cache()


def _reset_mm_cache(engine: LLMEngine) -> None:
    _runner(engine)
    engine.reset_mm_cache()


def _apply_model(engine: LLMEngine, function: Callable[[Any], _Result]) -> list[_Result]:
    engine.require_awake()
    return [function(_runner(engine).model)]


def _start_profile(engine: LLMEngine, trace_file: str | os.PathLike[str] | None) -> None:
    _runner(engine)
    engine.trace = Trace(trace_file)


def _stop_profile(engine: LLMEngine) -> str:
    if engine.trace is None:
        raise InvalidParameterError("no trace is running; call start_profile() first")
    file = engine.trace.stop()
    engine.trace = None
    return str(file)


def _runner(engine: LLMEngine) -> Any:
    return engine.runner  # raises if the engine was shut down
