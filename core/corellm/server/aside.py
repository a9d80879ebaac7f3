"""Beside the event loop: what takes long for one request, in a thread, one at a time.

Several such threads would hold up the event loop together, as each of them takes its turn with the interpreter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


class Aside:
    """A turn in a thread."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)

    async def run(self, function: Callable[[], _Result]) -> _Result:
        """Call a function in a thread, in its turn."""
        async with self._turn:
            return await asyncio.to_thread(function)
