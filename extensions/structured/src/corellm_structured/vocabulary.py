"""A model's tokenizer as llguidance reads it: the bytes of each token.

Knows tokens' bytes and packed masks; knows no grammar. Made when it is first needed: it takes seconds for hundreds of
thousands of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from corellm.frontend.detokenizer import bytes_of_tokens
from corellm.sampling.constraint import TokenMask, num_words, pack
from corellm_structured.grammars import tokenizer_of


class Vocabulary:
    """The tokens that a grammar may allow; special ones and those without a text are none.

    Args:
        tokenizer: of the model.
        vocab_size: width of the logits.
    """

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self._tokenizer, self.size = tokenizer, vocab_size

    @cached_property
    def _tokens(self) -> list[bytes]:
        return bytes_of_tokens(self._tokenizer, self.size)

    @cached_property
    def ordinary(self) -> TokenMask:
        """The tokens that have a text."""
        return self.pack([token for token, spelt in enumerate(self._tokens) if spelt])

    @cached_property
    def ll_tokenizer(self) -> LLTokenizer:
        """The library's form of it."""
        return tokenizer_of(self._tokens)

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
        self._ordinary = vocabulary.ordinary & ~self._stops
        words = np.zeros(num_words(vocabulary.size + 1), dtype=np.int32)  # as many as the library writes
        self._address, self._num_bytes = words.ctypes.data, words.nbytes
        self._words = words[: len(self._stops)]

    def fill(self, mask: TokenMask, matcher: LLMatcher) -> None:
        """Set the bits of the tokens that may come next in a mask that has none."""
        matcher.unsafe_compute_mask_ptr(self._address, self._num_bytes)
        np.bitwise_and(self._words, self._ordinary, out=mask)
        if matcher.is_accepting():
            mask |= self._stops
