"""Maintenance of a loaded engine between steps: empty caches, inspect or change the model, sleep, metrics, traces.

`LLM` and `AsyncLLM` inherit these methods and implement `_in_engine`, which runs a function in the thread that drives
the engine. Knows the caches and the model; knows no requests.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from corellm.engine import sleeping
from corellm.engine.metrics import Metric, read_metrics
from corellm.engine.weight_files import weight_directory
from corellm.errors import InvalidParameterError
from corellm.worker.trace import Trace

if TYPE_CHECKING:
    from corellm.engine.llm_engine import LLMEngine
    from corellm.engine.weight_files import Weights

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

    def sleep(self, level: int = 1) -> None:
        """Give back the memory of the KV cache and of weights until `wake_up`; calls in other threads end first.

        The prefix cache and encoder outputs are dropped. Meanwhile `generate` and its like are refused.

        Args:
            level: 1 keeps the weights' values, a GPU's in host memory; 2 drops them: they are read again, from the
                checkpoint and from what `update_weights` was given.

        Raises:
            InvalidParameterError: another level, or level 2 of a model that does not generate.
        """
        self._in_engine(partial(sleeping.sleep, level))

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """End `sleep`; nothing is done to what is awake.

        Args:
            tags: `"weights"`, `"kv_cache"` for a part of it: requests run once both are awake. None for both.

        Raises:
            InvalidParameterError: another tag.
            CheckpointError: the weights cannot be read; the model goes on sleeping.
        """
        self._in_engine(partial(sleeping.wake_up, tags))

    def is_sleeping(self) -> bool:
        """Whether the model sleeps, or a part of it."""
        return self.engine.is_sleeping

    def update_weights(self, weights: Weights) -> None:
        """Give the model other weights, all or some; all else stays, as the other parts of fused layers.

        Results are those of a checkpoint with these weights, bit for bit. Names and shapes are checked before any
        weight is changed. The prefix cache and encoder outputs are dropped. While the weights sleep, the new ones are
        kept in files, for `wake_up` to read: several calls then cost one load.

        Args:
            weights: tensors by the checkpoint's names, in a mapping or as pairs, which are copied; or a directory with
                safetensors, whose files must stay as they are until others take their place, or the model is closed.

        Raises:
            InvalidParameterError: which weight does not fit; nothing was changed.
            CheckpointError: a file cannot be read, or the model cannot be made of these weights; nothing was changed.
        """
        with weight_directory(weights) as (directory, is_temporary):
            self._in_engine(partial(sleeping.update_weights, directory, is_temporary))

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

    async def sleep(self, level: int = 1) -> None:
        """Sleep as `LLM.sleep`, but requests wait: running ones go on after `wake_up`, and new ones are taken."""
        await self._in_engine(partial(sleeping.sleep, level))

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """End `sleep`, as `LLM.wake_up`."""
        await self._in_engine(partial(sleeping.wake_up, tags))

    async def is_sleeping(self) -> bool:
        """Return whether the model sleeps, or a part of it."""
        return await self._in_engine(sleeping.is_sleeping)

    async def update_weights(self, weights: Weights) -> None:
        """Give other weights, as `LLM.update_weights`; requests go on with them, from the tokens that they have."""
        with ExitStack() as after:
            directory, is_temporary = await asyncio.to_thread(after.enter_context, weight_directory(weights))
            await self._update_weights(directory, is_temporary)

    async def _update_weights(self, directory: Path, is_temporary: bool) -> None:
        await self._in_engine(partial(sleeping.update_weights, directory, is_temporary))

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
    sleeping.require_awake(engine)
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
