"""Adapters in memory: those that were needed last, and some that are read ahead, one after another in a thread.

Knows adapters by their digests; knows neither slots nor requests.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from corellm.errors import CorellmError, RequestFailedError
from corellm_lora.adapter_files import AdapterFiles, Values
from corellm_lora.terms import Terms

if TYPE_CHECKING:
    from corellm_lora.request_part import AdapterOf

logger = logging.getLogger(__name__)

Read = Mapping[str, Values]
"""An adapter's tensors by module."""
_MOST_AHEAD = 4
"""Adapters that are read before their requests can start."""
_PATIENCE = 0.02
"""Seconds that an engine with nothing to do waits for an adapter at a time: other requests may come."""


class Shelf:
    """The adapters. One thread, that of the engine, calls it.

    Attributes:
        num_read: adapters that were read so far.
    """

    def __init__(self) -> None:
        self.num_read = 0
        self._wanted: WeakValueDictionary[int, AdapterOf] = WeakValueDictionary()
        """What requests that are not over want, by the `id` of what says so."""
        self._terms: Callable[[], Terms] | None = None
        self._most = 1
        self._is_placed: Callable[[str], bool] = lambda digest: False
        self._kept: OrderedDict[str, Future[Read]] = OrderedDict()
        """Adapters that were read, and the one that is being read; the one that was needed last is at the end."""
        self._pinned: set[str] = set()
        """Digests of those that stay."""
        self._ahead: list[str] = []
        """Digests of those among them that no request has taken yet, beside as many as are kept."""
        self._reading: Future[Read] | None = None
        self._thread = ThreadPoolExecutor(1, "corellm-lora")

    def __len__(self) -> int:
        return sum(kept.done() for kept in self._kept.values())

    def open(self, terms: Callable[[], Terms], most: int, is_placed: Callable[[str], bool]) -> None:
        """Begin to serve a model.

        Args:
            terms: those of the model, as far as they are known.
            most: adapters that are kept after they were read.
            is_placed: whether the model has an adapter's tensors, so that they need not be read.
        """
        self._terms, self._most, self._is_placed = terms, most, is_placed

    def want(self, part: AdapterOf) -> None:
        """Note that a request wants an adapter, for as long as its part is there."""
        self._wanted[id(part)] = part

    @property
    def wanted(self) -> set[str]:
        """The digests of adapters of all requests that are not over."""
        parts = (reference() for reference in self._wanted.valuerefs())  # a copy: another thread may add some
        return {part.adapter["digest"] for part in parts if part is not None}

    def has(self, adapter: Mapping[str, str], *, waits: bool) -> bool:
        """Whether an adapter needs no more reading, or cannot be read; it is read soon if it does.

        One is read at a time.

        Args:
            adapter: what `AdapterKey.read` returned.
            waits: whether there is nothing to do meanwhile.
        """
        digest = adapter["digest"]
        if self._is_placed(digest):
            return True
        if digest not in self._kept and (self._reading is None or self._reading.done()):
            self._reading = self._kept[digest] = self._thread.submit(self._read, dict(adapter))
            self._ahead = [*self._ahead[1 - _MOST_AHEAD :], digest]  # requests of others may be gone
            self._trim()
        if waits and self._reading is not None:
            wait_for([self._reading], _PATIENCE)
        return digest in self._kept and self._kept[digest].done()

    def take(self, adapter: Mapping[str, str]) -> Read:
        """Return an adapter's tensors.

        Raises:
            RequestFailedError: the files are not what they were when the request was prepared.
        """
        digest = adapter["digest"]
        if digest not in self._kept:
            self._kept[digest] = self._thread.submit(self._read, dict(adapter))
        found = self._kept[digest]
        self._kept.move_to_end(digest)
        self._ahead = [other for other in self._ahead if other != digest]
        self._trim()
        try:
            return found.result()
        except CorellmError:
            self._kept.pop(digest, None)  # another request may find the files right
            raise

    def keep(self, digests: set[str]) -> None:
        """Let these adapters stay, which were taken, and no others that were to stay before."""
        self._pinned = digests
        self._trim()

    def drop(self, digest: str) -> None:
        """Give back an adapter's memory; it is read again if it is needed."""
        self._kept.pop(digest, None)

    def _trim(self) -> None:
        """Drop those that were needed longest ago, but for those that stay."""
        taken = [digest for digest in self._kept if digest not in self._ahead and digest not in self._pinned]
        most = max(0, self._most - len(self._pinned))
        for digest in taken[: max(0, len(taken) - most)]:
            del self._kept[digest]

    def _read(self, adapter: Mapping[str, str]) -> Read:
        name = adapter["name"]
        assert self._terms is not None
        try:
            files = AdapterFiles.opened(name, adapter["path"], self._terms())
            values = files.values()
        except (CorellmError, OSError) as error:
            raise RequestFailedError(f"LoRA adapter {name!r:.100} cannot be read any more: {error}") from error
        if files.digest.hex() != adapter["digest"]:
            raise RequestFailedError(f"LoRA adapter {name!r:.100} has changed; send the request again")
        logger.info("read the LoRA adapter %r from %s", name, adapter["path"])
        self.num_read += 1
        return values
