"""Downloads for callers that have no event loop, or must not block theirs: one loop, in a thread of its own.

All callers share it, so that the fetcher's limits hold for all of them together, wherever they call from.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING

from corellm.errors import ProcessingError

if TYPE_CHECKING:  # imports an HTTP library
    from corellm_server.fetching.fetcher import Fetcher

CLOSED = "nothing is fetched any more: the engine was shut down"


class FetchThread:
    """Runs a fetcher in a thread, which starts with the first download and ends with `close`, or with this object.

    Args:
        fetcher: used here alone.
    """

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._changing = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: weakref.finalize[..., FetchThread] | None = None
        self._closed = False

    def begin(self, url: str, *, kind: str) -> Future[bytes]:
        """Begin a download; the future has what `Fetcher.fetch` returns or raises, and cancels the download.

        Raises:
            ProcessingError: this is closed, or the thread cannot be started.
        """
        with self._changing:
            if self._closed:
                raise ProcessingError(CLOSED)
            if self._loop is None:
                started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
                try:
                    threading.Thread(target=_run, args=(started,), name="corellm-fetch", daemon=True).start()
                    self._loop, ending = started.result()
                except (OSError, RuntimeError) as error:  # no descriptors, no threads
                    raise ProcessingError(f"nothing can be fetched now: {error}") from error
                self._end = weakref.finalize(self, self._loop.call_soon_threadsafe, ending.set)
            return asyncio.run_coroutine_threadsafe(self._fetcher.fetch(url, kind=kind), self._loop)

    def close(self) -> None:
        """Cancel the downloads under way; begin no more."""
        with self._changing:  # a download that was begun is there to be cancelled
            self._closed = True
            if self._end is not None:
                self._end()


def _run(started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    async def until_the_end() -> None:
        ending = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), ending))
        await ending.wait()

    try:
        asyncio.run(until_the_end())  # cancels the downloads that are left; the fetcher keeps no connection open
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)
