"""A model's tokenizer as llguidance reads it: the bytes of each token.

Knows tokens' bytes and packed masks; knows no grammar. Made when it is first needed: it takes seconds for hundreds of
thousands of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from corellm.frontend.detokenizer import bytes_of_tokens
from corellm.sampling.constraint import TokenMask, num_words, pack
from corellm_structured.forms import special_name
from corellm_structured.grammars import SPECIAL, tokenizer_of

_NUM_TEXTS = 1024
"""Texts whose tokens are kept."""


class Marker(NamedTuple):
    """A text that opens or ends a part of an output."""

    text: str
    token_ids: tuple[int, ...]
    """Its usual tokens; none if the model has not all of them."""
    is_special: bool
    """Whether it is a special token, which is no text to a grammar."""


class Vocabulary:
    """The tokens that a grammar may allow: those with a text, and special ones that it names.

    Args:
        tokenizer: of the model.
        vocab_size: width of the logits.
    """

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self._tokenizer, self.size = tokenizer, vocab_size

    @cached_property
    def _tokens(self) -> list[bytes]:
        tokens = bytes_of_tokens(self._tokenizer, self.size)
        for token_id, token in getattr(self._tokenizer, "added_tokens_decoder", {}).items():
            if token.special and token_id < self.size:
                tokens[token_id] = SPECIAL + special_name(str(token)).encode()
        return tokens

    @cached_property
    def known(self) -> TokenMask:
        """The tokens that the library has bytes of."""
        return self.pack([token for token, spelt in enumerate(self._tokens) if spelt])

    @cached_property
    def ll_tokenizer(self) -> LLTokenizer:
        """The library's form of it."""
        return tokenizer_of(self._tokens)

    def text_of(self, token_id: int) -> bytes:
        """Return what a token adds to a text; empty for special ones."""
        spelt = self._tokens[token_id]
        return b"" if spelt.startswith(SPECIAL) else spelt

    def marker(self, text: str) -> Marker:
        """Return a marker's tokens."""
        added = self._tokenizer.get_added_vocab().get(text)
        token_ids = self._tokenizer.encode(text, add_special_tokens=False) if added is None else [added]
        if max(token_ids) >= self.size:
            return Marker(text, (), is_special=False)
        return Marker(text, tuple(token_ids), is_special=added is not None and not self.text_of(added))

    @cached_property
    def usual_tokens(self) -> Callable[[bytes], Sequence[int]]:
        """What returns the tokens that a text within another is usually made of; none if that cannot be told."""
        return lru_cache(maxsize=_NUM_TEXTS)(self._usual_tokens)

    def _usual_tokens(self, text: bytes) -> Sequence[int]:
        characters = text.decode(errors="ignore")
        wanted = characters.encode()
        for before in ("", "\n"):  # behind which no tokenizer puts a space, as some do before a whole text
            tokens = self._tokenizer.encode(before + characters, add_special_tokens=False)
            spelt = [self._tokens[token] if token < self.size else b"" for token in tokens]
            for first in range(min(3, len(tokens))):
                if b"".join(spelt[first:]) == wanted:
                    return tuple(tokens[first:])
        return ()

    def pack(self, token_ids: Iterable[int]) -> TokenMask:
        """Return a mask of these tokens."""
        return pack(np.fromiter(token_ids, dtype=np.int64), self.size)


class AllowedTokens:
    """The tokens that one matcher after another allows next, in memory of its own; not for several threads.

    Args:
        vocabulary: of the matchers.
        stop_token_ids: may come where the text is complete, and nowhere else, whatever their text.
    """

    def __init__(self, vocabulary: Vocabulary, stop_token_ids: Iterable[int]) -> None:
        self._stops = vocabulary.pack(stop_token_ids)
        self._known = vocabulary.known & ~self._stops
        words = np.zeros(num_words(vocabulary.size + 1), dtype=np.int32)  # as many as the library writes
        self._address, self._num_bytes = words.ctypes.data, words.nbytes
        self._words = words[: len(self._stops)]

    def fill(self, mask: TokenMask, matcher: LLMatcher) -> None:
        """Set the bits of the tokens that may come next in a mask that has none."""
        matcher.unsafe_compute_mask_ptr(self._address, self._num_bytes)
        np.bitwise_and(self._words, self._known, out=mask)
        if matcher.is_accepting():
            mask |= self._stops
