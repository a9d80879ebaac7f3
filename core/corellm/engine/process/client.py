"""`AsyncLLM` with its engine in a process of its own: what a crash of the engine costs is its requests.

Knows event loops and threads; the process and the messages are `link`'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pkgutil import resolve_name
from typing import Any, TypeVar

from corellm.config import EngineConfig
from corellm.engine.async_llm import AsyncLLM
from corellm.engine.metrics import Counter, Gauge, Metric
from corellm.engine.process.codec import metrics_of, plain_metrics
from corellm.engine.process.remote_engine import RemoteEngine
from corellm.errors import AbsentMethodError, EngineDeadError, InvalidParameterError

_Result = TypeVar("_Result")


class ProcessLLM(AsyncLLM):
    """A loaded model in a process of its own, that serves many coroutines of this one.

    Args:
        model, **engine_args: as for `LLM`; plain data only, and no functions.

    Raises:
        ConfigError, CheckpointError, PluginError: the model cannot be served.
        EngineDeadError: the engine's process ended while it loaded the model.
    """

    engine: RemoteEngine  # type: ignore[assignment]  # has what `AsyncLLM` uses of an `LLMEngine`

    def __init__(self, model: str | os.PathLike[str], **engine_args: Any) -> None:
        super().__init__(model, **engine_args)
        self.engine.link.start_reading(self._deliver, self._end)

    def _load_engine(self, **engine_args: Any) -> RemoteEngine:  # type: ignore[override]
        return RemoteEngine(EngineConfig.from_kwargs(**engine_args))

    def _end(self, reason: EngineDeadError) -> None:
        """Stop the thread that sends, with the reason why the process ended."""

        def stop() -> None:
            if not self._stopping:
                raise reason

        self._inbox.put(stop)

    @property
    def max_model_len(self) -> int:
        """Longest sequence, prompt and output together, that the model and the KV cache take."""
        return self.engine.sizes.max_total_tokens

    @property
    def max_num_seqs(self) -> int:
        """Most sequences that run at once."""
        return self.engine.sizes.max_num_seqs

    @property
    def pid(self) -> int:
        """Id of the engine's process."""
        return self.engine.link.pid

    @property
    def num_steps(self) -> int:
        """Steps that the engine finished."""
        return self.engine.num_steps

    @property
    def seconds_silent(self) -> float:
        """Seconds since the engine's last sign of life: a finished step, or once a second that it has none to do.

        A server whose engine is silent for longer than its longest step is not ready.
        """
        return self.engine.link.seconds_silent

    def close(self) -> None:
        """As `AsyncLLM.close`; kills the engine's process if its step in flight does not end."""
        self._stopping = True
        self.engine.end()
        super().close()

    # --- maintenance ------------------------------------------------------------------------------------------------

    async def in_engine(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call a function as `AsyncLLM.in_engine` does: the other process imports it by its name."""
        future: Future[_Result] = Future()
        return await self._result_of(future, partial(self.engine.call, future, name_of(function), arguments))

    async def reset_mm_cache(self) -> None:
        """Forget processed items, and encoder outputs that no request in flight needs."""
        self.input_processor.mm_processor.cache.clear()
        await super().reset_mm_cache()

    async def apply_model(self, function: Callable[[Any], _Result]) -> list[_Result]:
        """Refuse: a function cannot be sent to another process.

        Raises:
            AbsentMethodError: always.
        """
        raise AbsentMethodError("apply_model: the model is in another process; use it with AsyncLLM or LLM")

    async def get_metrics(self) -> list[Metric]:
        """As `LLM.get_metrics`; items are processed and counted in this process."""
        own = {metric.name: metric for metric in self.own_metrics()}
        return [own.get(metric.name, metric) for metric in metrics_of(await self.in_engine(plain_metrics))]

    def own_metrics(self) -> list[Metric]:
        """What is counted in this process, and not in the engine's."""
        cache = self.input_processor.mm_processor.cache
        return [
            Counter("corellm:mm_cache_queries", cache.hits + cache.misses),
            Counter("corellm:mm_cache_hits", cache.hits),
            Gauge("corellm:mm_cache_usage_perc", cache.usage),
        ]


def name_of(function: Callable[..., Any]) -> str:
    """Return the name by which another process imports a function.

    Raises:
        InvalidParameterError: there is none.
    """
    module = getattr(function, "__module__", None)
    name = f"{module}:{getattr(function, '__qualname__', None)}"
    try:
        found = resolve_name(name)
    except (ImportError, AttributeError, ValueError):
        found = None
    if found != function or module == "__main__":
        raise InvalidParameterError(
            f"{function!r:.100} cannot be called in the engine's process, which imports functions by name; give one "
            "that is defined in an importable module"
        )
    return name
