"""The outputs of earlier requests, kept to guess later ones from: bounded, and apart for each salt.

Knows tokens and salts; knows no running request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from corellm_speculative.text import NONE, Text

MOST_TOKENS = 1 << 18
"""Tokens that are kept, about 40 MB; the oldest outputs are dropped for new ones."""


class Outputs:
    """Keeps outputs.

    Args:
        shortest, longest: as of `Text`.
        most_requests: outputs that are kept.
        most_tokens: of all of them.
    """

    def __init__(self, shortest: int, longest: int, most_requests: int, most_tokens: int = MOST_TOKENS) -> None:
        self._shortest, self._longest = shortest, longest
        self._most_requests, self._most_tokens = most_requests, most_tokens
        self._texts: dict[str | None, Text] = {}
        self._kept: deque[tuple[str | None, int]] = deque()
        """Salt and number of tokens of each output, the oldest first."""
        self.num_tokens = 0

    def of(self, salt: str | None) -> Text | None:
        """Return the text that a request of a salt may be guessed from; None if there is none."""
        return self._texts.get(salt)

    def add(self, salt: str | None, tokens: Sequence[int]) -> None:
        """Keep an output, or of one that is too long the end."""
        tokens = tokens[-(self._most_tokens - 1) :]
        if len(tokens) < self._shortest or not self._most_requests:
            return
        size = len(tokens) + 1
        while self._kept and (len(self._kept) >= self._most_requests or self.num_tokens + size > self._most_tokens):
            self._drop_oldest()
        if salt not in self._texts:
            self._texts[salt] = Text(self._shortest, self._longest)
        self._texts[salt].extend([*tokens, NONE])
        self._kept.append((salt, size))
        self.num_tokens += size

    def _drop_oldest(self) -> None:
        salt, size = self._kept.popleft()
        self.num_tokens -= size
        self._texts[salt].drop(size)
        if not self._texts[salt]:
            del self._texts[salt]
