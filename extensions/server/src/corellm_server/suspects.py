"""Requests that engines had when they ended: one that comes again and again is not given to one engine after the other.

Knows what a request is by its prompt, and times; knows no engines.
"""

from __future__ import annotations

import hashlib
import threading
import time
from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING

from corellm.errors import PromptError

if TYPE_CHECKING:
    from corellm.serving import ProcessedPrompt

REFUSED_SECONDS = 600.0
"""How long it is refused."""
_MOST_KNOWN = 4096


def print_of(prompt: ProcessedPrompt) -> bytes:
    """What tells a prompt from others: its tokens, its items, and whose it is."""
    identity = hashlib.blake2b(array("q", prompt.token_ids).tobytes(), digest_size=16)
    for feature in prompt.features:
        identity.update(b"item" + feature.identifier.encode("utf-8", "surrogatepass"))
    identity.update(b"salt" + (prompt.cache_salt or "").encode("utf-8", "surrogatepass"))
    return identity.digest()


class Suspects:
    """Counts with which requests engines ended, in any thread.

    Whether a request was the reason is not known. One that an engine finishes is none.

    Args:
        most_ends: how often it may be noted before it is refused.
    """

    def __init__(self, most_ends: int) -> None:
        self._most_ends = most_ends
        self._ends: dict[bytes, tuple[int, float]] = {}
        """How many engines ended with each, and when the last one did; the last to end is the last here."""
        self._changing = threading.Lock()

    def note(self, prints: Iterable[bytes]) -> None:
        """Note the requests that an engine had when it ended."""
        now = time.monotonic()
        with self._changing:
            for one in set(prints):
                self._ends[one] = (self._ends.pop(one, (0, now))[0] + 1, now)
            while len(self._ends) > _MOST_KNOWN:
                del self._ends[next(iter(self._ends))]

    def clear(self, one: bytes) -> None:
        """Forget a request that an engine finished."""
        if one in self._ends:
            with self._changing:
                self._ends.pop(one, None)

    def check(self, one: bytes) -> None:
        """Return if a request may be given to an engine.

        Raises:
            PromptError: engines ended with it.
        """
        number, when = self._ends.get(one, (0, 0.0))
        if number < self._most_ends:
            return
        if time.monotonic() - when > REFUSED_SECONDS:
            self.clear(one)
            return
        raise PromptError(
            "engines ended again and again while they had this prompt, so it is refused for "
            f"{REFUSED_SECONDS / 60:g} minutes; the server's log says how they ended"
        )
