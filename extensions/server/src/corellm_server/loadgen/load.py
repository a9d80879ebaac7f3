"""Sends all requests at their times, whatever became of those before: a slow server does not get less load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from corellm.errors import ConfigError
from corellm_server.loadgen.client import Client
from corellm_server.loadgen.result import RequestResult
from corellm_server.loadgen.settings import LoadSettings
from corellm_server.loadgen.workload import arrival_times, request_body

_NUM_PREPARED = 16
"""Requests made ahead, in a thread, so that making them delays none and all of them need not be in memory."""


async def run_load(settings: LoadSettings, on_end: Callable[[RequestResult], None]) -> tuple[str, list[RequestResult]]:
    """The model's name, and the results in the order of sending.

    Args:
        settings: the load.
        on_end: called with each result.

    Raises:
        ConfigError: there is no server, or it refuses the request that is sent first, to check it and to warm up.
    """
    start = time.perf_counter()

    def clock() -> float:
        return time.perf_counter() - start

    async with Client(settings, clock) as client:
        model = await client.find_model()
        body = await asyncio.to_thread(request_body, settings, model, -1)
        check = await client.send(RequestResult(-1, 0.0), body)
        if check.error:
            raise ConfigError(f"the server does not take such requests: {check.error}"
                              f"{check.message and ': '}{check.message}")  # fmt: skip

        async def send(index: int, scheduled: float, body: bytes) -> RequestResult:
            result = await client.send(RequestResult(index, scheduled), body)
            on_end(result)
            return result

        bodies: asyncio.Queue[bytes] = asyncio.Queue(_NUM_PREPARED)

        async def prepare() -> None:
            for index in range(settings.num):
                await bodies.put(await asyncio.to_thread(request_body, settings, model, index))

        tasks: list[asyncio.Task[RequestResult]] = []
        async with asyncio.TaskGroup() as group:
            preparing = group.create_task(prepare())
            while not (bodies.full() or preparing.done()):
                await asyncio.sleep(0.01)
            start = time.perf_counter()
            for index, scheduled in enumerate(arrival_times(settings)):
                body = await bodies.get()
                await asyncio.sleep(scheduled - clock())
                tasks.append(group.create_task(send(index, scheduled, body)))
        return model, [task.result() for task in tasks]
