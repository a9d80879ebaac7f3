"""Which of several engines gets a request: that which has most likely seen its prefix and items, unless it is busy.

Consistent hashing with bounded load: an engine's share of keys stays its own while others come and go, and none has
more than its part of the requests in flight and a quarter of it. Knows keys, numbers, and what of a prompt is its key;
knows neither engines nor requests' formats.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from corellm.serving import ProcessedPrompt

_Name = TypeVar("_Name", bound=str | int)
LEADING_TOKENS = 64
"""Tokens of a prompt without items that are its key: a long system prompt keeps its requests together, and after a
short one conversations are told apart by how they begin."""
LOAD_FACTOR = 1.25
"""How many times the mean number of requests in flight an engine may have."""


def routing_key(beginning: bytes | Sequence[int], first_item: str | None, salt: str | None = None) -> bytes:
    """What requests have in common that should go to one engine.

    An item's embeddings are shared whatever text is around it, and its tokens are most of a prompt's prefix: it alone
    is the key where there is one. The first one, so that a conversation stays where it is as more items come.

    Args:
        beginning: of the prompt: its first `LEADING_TOKENS` token ids; or where there are none yet, its system prompt
            and the first message as bytes.
        first_item: what tells the first item of the prompt from others: its identifier, or a hash of its content or
            URL; None for a prompt without.
        salt: of the request's caches; others share nothing with it.
    """
    if first_item is not None:
        shared = b"item" + first_item.encode()
    elif isinstance(beginning, bytes):
        shared = b"text" + beginning
    else:
        shared = b"ids" + b",".join(b"%d" % token for token in beginning[:LEADING_TOKENS])
    parts = (b"" if salt is None else b"salt" + salt.encode("utf-8", "surrogatepass"), shared)
    return b"".join(hashlib.blake2b(part, digest_size=16).digest() for part in parts)


def key_of(prompt: ProcessedPrompt) -> bytes:
    """The routing key of a prepared prompt."""
    first = min(prompt.features, key=lambda feature: feature.placeholder.offset, default=None)
    return routing_key(prompt.token_ids, None if first is None else first.identifier, prompt.cache_salt)


def choose(key: bytes, loads: Mapping[_Name, int], factor: float = LOAD_FACTOR) -> _Name:
    """The engine that gets a request.

    Args:
        key: of `routing_key`.
        loads: requests in flight of each engine that can take one; at least one engine.
        factor: how many times the mean load an engine may have, at least 1.
    """
    most = math.ceil(factor * (sum(loads.values()) + 1) / len(loads))
    return next(name for name in preferences(key, loads) if loads[name] < most)


def preferences(key: bytes, names: Iterable[_Name]) -> list[_Name]:
    """The engines in the order in which they should get a key's requests.

    Without one of them the others' order is the same: its own keys move, and no others.
    """
    return sorted(names, key=lambda name: hashlib.blake2b(str(name).encode(), digest_size=8, key=key).digest())
