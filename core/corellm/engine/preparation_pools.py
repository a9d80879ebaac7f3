"""Threads that prepare prompts, in two pools: a short text never waits for another request's media or long text.

`CallingThread` takes the place of such threads where all prompts are texts.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, TypeVar

from corellm.worker.process import usable_cpus

_Result = TypeVar("_Result")


class PreparationPools:
    """Both pools; their threads start when they are first needed."""

    def __init__(self) -> None:
        self._text = ThreadPoolExecutor(1, thread_name_prefix="corellm-text")
        self._media = ThreadPoolExecutor(usable_cpus() + 1, thread_name_prefix="corellm-media")

    def submit(self, function: Callable[[], _Result], *, takes_long: bool) -> Future[_Result]:
        """Call a function in a thread.

        Raises:
            RuntimeError: the pools were closed.
        """
        return (self._media if takes_long else self._text).submit(function)

    def close(self) -> None:
        """Call no more functions; return without waiting for those that run."""
        for pool in (self._text, self._media):
            pool.shutdown(wait=False, cancel_futures=True)


class CallingThread(Executor):
    """Calls functions at once, in the thread that submits them: to pass a text to another thread takes longer."""

    def submit(self, fn: Callable[..., _Result], /, *args: Any, **kwargs: Any) -> Future[_Result]:
        """Return the function's result or error."""
        future: Future[_Result] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future
