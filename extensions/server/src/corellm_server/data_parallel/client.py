"""`ProcessLLM` with several engines behind it. Knows how results of several are one; the rest is the group's."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

from corellm.config import EngineConfig
from corellm.errors import AbsentMethodError, EngineLostError, InvalidParameterError
from corellm.serving import (
    Metric,
    ProcessedPrompt,
    ProcessLLM,
    RemoteEngine,
    Share,
    metrics_of,
    name_of,
    plain_metrics,
    reset_prefix_cache_of,
    total_metrics,
)
from corellm_server.data_parallel.division import devices_of, shares_of
from corellm_server.data_parallel.group import EngineGroup
from corellm_server.routing import key_of

_Result = TypeVar("_Result")


class DataParallelLLM(ProcessLLM):
    """Several engines with one model, each in a process of its own on its part of this machine.

    A request goes to the engine that has most likely seen its beginning and its items. If an engine ends, its requests
    fail with an `EngineLostError`, others go on, and it is started again; not once the engines slept or got other
    weights: then all stop, as one engine does.

    Args:
        model, **engine_args: as for `LLM`; plain data only, and no functions. Sizes that are given are each engine's.
        data_parallel_size: number of engines.
        engine_hang_timeout: seconds without a finished step, with requests, after which an engine is started again; 0
            for never.
        shares: each engine's part of the machine, where there are engines of other models, too; then an engine is
            started again however often it cannot be. None for all of the machine.

    Raises:
        ConfigError, CheckpointError, PluginError: the model cannot be served, or there are fewer processors or GPUs.
        EngineDeadError: an engine's process ended while it loaded the model.
    """

    group: EngineGroup

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        data_parallel_size: int,
        engine_hang_timeout: float = 300.0,
        shares: Sequence[Share] | None = None,
        **engine_args: Any,
    ) -> None:
        self._size, self._hang_timeout, self._shares = data_parallel_size, engine_hang_timeout, shares
        super().__init__(model, **engine_args)

    def _load_engine(self, **engine_args: Any) -> RemoteEngine:  # type: ignore[override]
        config = EngineConfig.from_kwargs(**engine_args)
        shares = self._shares or shares_of(self._size)
        devices = [config.model.device] if self._size == 1 else devices_of(self._size, config.model.device)

        def start(plain_args: dict[str, Any]) -> EngineGroup:
            self.group = EngineGroup(
                plain_args, shares, devices, self._hang_timeout, gives_up=self._shares is None
            )  # fmt: skip
            return self.group

        return RemoteEngine(config, start)

    @property
    def pids(self) -> dict[int, int]:
        """Ids of the processes of engines that serve, by the engine's number."""
        return self.group.pids

    # --- maintenance ------------------------------------------------------------------------------------------------

    async def in_engines(
        self, function: Callable[..., _Result], *arguments: Any, skips_silent: bool = False
    ) -> dict[int, _Result]:
        """Call a function with each engine, in its process between two steps; returns their results by number."""
        future: Future[dict[int, _Result]] = Future()
        call = partial(self.group.call, future, name_of(function), arguments, skips_silent=skips_silent)
        return await self._result_of(future, call)

    async def in_engine(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call a function with each engine, as `ProcessLLM.in_engine` does; returns the result of the first one.

        An engine that is started again later has not called it; it calls what `repeat_in_new_engines` was given.
        """
        return next(iter((await self.in_engines(function, *arguments)).values()))

    async def in_engine_of(self, prompt: ProcessedPrompt, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call a function with the one engine that should have this prompt's requests; others go on with their steps.

        Raises:
            EngineLostError: that engine ended, or none serves.
        """
        future: Future[dict[int, _Result]] = Future()
        call = partial(self.group.call, future, name_of(function), arguments, key=key_of(prompt))
        return next(iter((await self._result_of(future, call)).values()))

    def repeat_in_new_engines(self, name: str, function: Callable[..., Any], *arguments: Any) -> None:
        """Have engines that are started again call a function, before they have requests; it may be called once more.

        Of several calls with one name the last one counts.
        """
        self.group.repeat(name, name_of(function), arguments)

    if not TYPE_CHECKING:  # as `AsyncLLM` states them

        @property
        def sleep(self) -> Callable[..., Awaitable[None]]:
            """As `AsyncLLM.sleep`, for all engines."""
            return self._changing(super().sleep)

        @property
        def update_weights(self) -> Callable[..., Awaitable[None]]:
            """As `AsyncLLM.update_weights`, for all engines; of a directory only."""
            update = self._changing(super().update_weights)

            @wraps(update)
            async def of_directory(weights: Any) -> None:
                if not isinstance(weights, str | os.PathLike):
                    raise InvalidParameterError(
                        "weights must be a directory where several engines read them; write the tensors to safetensors",
                        param="weights",
                    )
                await update(weights)

            return of_directory

    def _changing(self, call: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        @wraps(call)
        async def changing(*arguments: Any, **named: Any) -> None:
            if len(self.pids) < self._size:
                raise EngineLostError("an engine is being started again; ask once all serve")
            self.group.num_changes += 1
            try:
                await call(*arguments, **named)
            except InvalidParameterError:  # nothing was changed
                self.group.num_changes -= 1
                raise

        return changing

    async def start_profile(self, trace_file: str | os.PathLike[str] | None = None) -> None:
        """Refuse: all engines would write the same file.

        Raises:
            AbsentMethodError: always.
        """
        raise AbsentMethodError("start_profile: a trace is of one engine, and here are several; use ProcessLLM")

    async def reset_prefix_cache(self) -> bool:
        """As `LLM.reset_prefix_cache`; False if an engine has requests in flight."""
        return all((await self.in_engines(reset_prefix_cache_of)).values())

    async def get_metrics(self) -> list[Metric]:
        """As `LLM.get_metrics`, of all engines together."""
        return total_metrics((await self.get_metrics_by_replica()).values())

    async def get_metrics_by_replica(self) -> dict[str, Sequence[Metric]]:
        """As `LLM.get_metrics`, of each engine by its number; under an empty name what is counted in this process.

        An engine that gives no sign of life is left out.
        """
        own = self.own_metrics()
        names = {metric.name for metric in own}
        found = await self.in_engines(plain_metrics, skips_silent=True)
        of_engines = {number: metrics_of(plain) for number, plain in found.items()}
        by_engine: dict[str, Sequence[Metric]] = {"": own}
        for number, metrics in sorted(of_engines.items()):
            by_engine[str(number)] = [metric for metric in metrics if metric.name not in names]
        return by_engine
