"""Which replica a request goes to: the same for the same system prompt and items, with bounded load.

Rendezvous hashing: each key ranks all replicas, so that a replica that comes or goes moves its own keys only. Knows
prompts and numbers; knows no Ray.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from hashlib import blake2b

from corellm.serving import ProcessedPrompt

PREFIX_TOKENS = 32
"""Tokens of the prompt that count, up to the first item: a system prompt's beginning tells it from others."""
MOST_OF_MEAN = 1.25
"""A replica has at most so many times the mean of all."""


def key_of(prompt: ProcessedPrompt) -> str:
    """What requests have in common that find something of each other in a replica's caches.

    That is the beginning of the text, the first item by the caches' own identity, and what separates clients.
    """
    first = min(prompt.features, key=lambda feature: feature.placeholder.offset, default=None)
    length = PREFIX_TOKENS if first is None else min(PREFIX_TOKENS, first.placeholder.offset)
    told = (prompt.cache_salt, prompt.token_ids[:length], None if first is None else first.identifier)
    return blake2b(repr(told).encode(), digest_size=16).hexdigest()


def ranked(key: str, loads: Mapping[str, int]) -> list[str]:
    """Replicas, the key's own first, but those with more than their share of the load last.

    Args:
        key: of a request.
        loads: requests in flight, by the replica's id.
    """
    most = math.ceil(MOST_OF_MEAN * (sum(loads.values()) + 1) / max(1, len(loads)))
    order = sorted(loads, key=lambda replica: blake2b(f"{key}{replica}".encode(), digest_size=8).digest())
    return sorted(order, key=lambda replica: loads[replica] >= most)
