"""Threads that prepare prompts, in two pools: a short text never waits for another request's media or long text,
and no client's requests wait for all those of another.

`CallingThread` takes the place of such threads where all prompts are texts.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from corellm.errors import ProcessingError
from corellm.system.process import usable_cpus

_Result = TypeVar("_Result")


class _FairThreads:
    """Threads that take a function of each owner in turn: one with many functions keeps no other waiting for them."""

    def __init__(self, count: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._changing = threading.Lock()
        self._waiting: OrderedDict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = OrderedDict()

    def submit(self, function: Callable[[], _Result], owner: str) -> Future[_Result]:
        future: Future[_Result] = Future()
        with self._changing:
            self._waiting.setdefault(owner, deque()).append((future, function))
        self._threads.submit(self._call_next)
        return future

    def _call_next(self) -> None:
        with self._changing:
            owner, functions = next(iter(self._waiting.items()))
            future, function = functions.popleft()
            self._waiting.move_to_end(owner)
            if not functions:
                del self._waiting[owner]
        if future.set_running_or_notify_cancel():
            try:
                _call(function, future)
            except BaseException as error:  # a panic of a library in Rust, which is no Exception
                failed = ProcessingError(f"the prompt could not be prepared: {type(error).__name__}: {error}")
                failed.__cause__ = error
                future.set_exception(failed)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._changing:
            for future in [future for functions in self._waiting.values() for future, _ in functions]:
                future.cancel()


class PreparationPools:
    """Both pools; their threads start when they are first needed.

    Args:
        fetching_threads: further threads, as functions also wait for other hosts.
    """

    def __init__(self, fetching_threads: int = 0) -> None:
        self._text = _FairThreads(1, "corellm-text")
        self._media = _FairThreads(usable_cpus() + 1 + fetching_threads, "corellm-media")

    def submit(self, function: Callable[[], _Result], *, takes_long: bool, owner: str = "") -> Future[_Result]:
        """Call a function in a thread, one of each owner in turn.

        Raises:
            RuntimeError: the pools were closed.
        """
        return (self._media if takes_long else self._text).submit(function, owner)

    def close(self) -> None:
        """Call no more functions; return without waiting for those that run."""
        self._text.close()
        self._media.close()


def _call(function: Callable[[], _Result], future: Future[_Result]) -> None:
    try:
        result = function()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)


class CallingThread(Executor):
    """Calls functions at once, in the thread that submits them: to pass a text to another thread takes longer."""

    def submit(self, fn: Callable[..., _Result], /, *args: Any, **kwargs: Any) -> Future[_Result]:
        """Return the function's result or error."""
        future: Future[_Result] = Future()
        _call(partial(fn, *args, **kwargs), future)
        return future
