"""Beside the event loop: what takes long for one request, in a thread, one at a time.

Several such threads would hold up the event loop together, as each of them takes its turn with the interpreter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TypeVar

_Result = TypeVar("_Result")


class Aside:
    """The thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "corellm-aside")

    async def run(self, function: Callable[[], _Result]) -> _Result:
        """Call a function in the thread, in its turn, which lasts until it returns, also where its request ended."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(copy_context().run, function))
