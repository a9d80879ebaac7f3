"""Prompts that engines had when they ended: which of them may be the reason, and which one is.

Knows what a request is by its prompt and parameters, and times; knows no engines.
"""

from __future__ import annotations

import hashlib
import threading
import time
from array import array
from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import msgspec

from corellm.errors import PromptError

if TYPE_CHECKING:
    from corellm.serving import ProcessedPrompt

REFUSED_SECONDS = 600.0
"""How long the one that is the reason is refused, and others are suspects."""
_MOST_KNOWN = 4096


def print_of(prompt: ProcessedPrompt, params: Any) -> bytes:
    """What tells a request from others: its tokens, items, adapter and parameters, and whose it is.

    Args:
        prompt: of the request.
        params: the request's own, a dataclass; how outputs are read is no part of them.
    """
    identity = hashlib.blake2b(array("q", prompt.token_ids).tobytes(), digest_size=16)
    for feature in prompt.features:
        identity.update(b"item" + feature.identifier.encode("utf-8", "surrogatepass"))
    identity.update(b"salt" + (prompt.cache_salt or "").encode("utf-8", "surrogatepass"))
    chosen = [getattr(params, field.name) for field in fields(params) if field.name != "output_kind"]
    identity.update(msgspec.msgpack.encode([prompt.decoder, prompt.extra, chosen]))
    return identity.digest()


class Suspects:
    """Requests with which engines ended, in any thread.

    Whether one was the reason is not known, unless an engine has it alone. One that an engine finishes is none.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[bool, float]] = {}
        """Whether each is the reason, and when an engine ended with it; the last to end is the last here."""
        self._changing = threading.Lock()

    def note(self, prints: Iterable[bytes], *, is_alone: bool) -> None:
        """Note the requests that an engine had when it ended: all are suspects then.

        Args:
            prints: of them.
            is_alone: whether the engine had no other request than this one, which is the reason if it was a suspect.
        """
        with self._changing:
            for one in prints:
                is_reason = one in self and (is_alone or self._known[one][0])
                self._known.pop(one, None)
                self._known[one] = is_reason, time.monotonic()
            while len(self._known) > _MOST_KNOWN:
                del self._known[next(iter(self._known))]

    def clear(self, one: bytes) -> None:
        """Forget a request that an engine finished."""
        if one in self._known:
            with self._changing:
                self._known.pop(one, None)

    def __contains__(self, one: bytes) -> bool:
        """Whether a request may be what ends engines."""
        found = self._known.get(one)
        return found is not None and time.monotonic() - found[1] <= REFUSED_SECONDS

    def check(self, one: bytes) -> None:
        """Return if a request may be given to an engine.

        Raises:
            PromptError: it ends engines.
        """
        if one in self and self._known.get(one, (False, 0.0))[0]:
            raise PromptError(
                "engines ended while they had this request, one of them while it had no other, so it is refused for "
                f"{REFUSED_SECONDS / 60:g} minutes; the server's log says how they ended"
            )
