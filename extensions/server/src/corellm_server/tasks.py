"""Several coroutines of one request at once. None of them outlives what waits for them, however that ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

_Result = TypeVar("_Result")


async def all_results(coroutines: Iterable[Coroutine[Any, Any, _Result]]) -> list[_Result]:
    """The results of all coroutines, in order; the first failure cancels the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancelled(tasks)


async def merged(streams: Sequence[AsyncGenerator[_Result, None]]) -> AsyncGenerator[tuple[int, _Result], None]:
    """What several streams yield, as it comes, each with its stream's number; at most one of each is held."""
    if len(streams) == 1:  # without tasks and a queue, which would cost as much as the rest
        async with contextlib.aclosing(streams[0]) as only:
            async for item in only:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, _Result] | BaseException | None] = asyncio.Queue(len(streams))

    async def pump(index: int, stream: AsyncGenerator[_Result, None]) -> None:
        try:
            async with contextlib.aclosing(stream):
                async for item in stream:
                    await queue.put((index, item))
        except Exception as error:
            await queue.put(error)
        else:
            await queue.put(None)

    pumps = [asyncio.ensure_future(pump(index, stream)) for index, stream in enumerate(streams)]
    try:
        unfinished = len(streams)
        while unfinished:
            found = await queue.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                unfinished -= 1
            else:
                yield found
    finally:
        await cancelled(pumps)


async def cancelled(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks, and return once they have ended; those that are done stay as they are."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
