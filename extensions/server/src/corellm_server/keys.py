"""API keys: which client a request comes from. Knows keys and headers only."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Mapping
from typing import NamedTuple

from corellm_server.errors import ApiError


class Caller(NamedTuple):
    """A client that was let in."""

    key: int | None
    """The number of its key, in the order in which they were given; None if the server has none."""
    salt: str | None
    """Separates its cache from those of other keys."""


class ApiKeys:
    """Tells clients apart by their keys.

    Args:
        keys: those that are let in; none for all clients.
    """

    def __init__(self, keys: Collection[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def caller(self, headers: Mapping[bytes, bytes]) -> Caller:
        """The client that sent headers: `Authorization` as OpenAI's clients do, `x-api-key` as Anthropic's do.

        Takes the same time for every wrong key, whatever part of it is right.

        Raises:
            ApiError: 401, the key is missing or wrong.
        """
        if not self._digests:
            return Caller(None, None)
        scheme, _, bearer = headers.get(b"authorization", b"").strip().partition(b" ")
        given = [bearer] if scheme.lower() == b"bearer" else []
        given += [headers[b"x-api-key"]] if b"x-api-key" in headers else []
        for key in given:
            digest = hashlib.sha256(key.strip()).digest()
            is_known = [hmac.compare_digest(digest, known) for known in self._digests]
            if any(is_known):
                salt = "key-" + hashlib.sha256(b"corellm cache salt\0" + digest).hexdigest()
                return Caller(is_known.index(True) + 1, salt)
        raise ApiError(
            401,
            f"the API key {'is wrong' if scheme or given else 'is missing'}; send one that the server was started "
            "with, as `Authorization: Bearer KEY` or `x-api-key: KEY`",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
