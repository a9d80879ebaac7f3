"""Text to token ids, as the checkpoint's tokenizer makes them.

Knows transformers' wrapper around a tokenizer of the `tokenizers` library, and when it can be skipped.
"""

from __future__ import annotations

from typing import Any

_STEPS = (
    "__call__", "_encode_plus", "_convert_encoding", "_get_padding_truncation_strategies", "backend_tokenizer",
    "set_truncation_and_padding",
)  # fmt: skip
"""Methods of the wrapper that process a text."""


class TextTokenizer:
    """Tokenizes text with a checkpoint's tokenizer.

    The wrapper's bookkeeping takes longer than tokenizing a short prompt, and holds up other threads: where the
    wrapper changes nothing, the tokenizer behind it is called directly.

    Args:
        tokenizer: a transformers tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        from transformers import PreTrainedTokenizerFast

        self._tokenizer = tokenizer
        self._is_usual = not hasattr(tokenizer, "_switch_to_input_mode") and all(
            getattr(type(tokenizer), step, None) is getattr(PreTrainedTokenizerFast, step) for step in _STEPS
        )

    def __call__(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The token ids of a text, with or without the special tokens that the tokenizer adds."""
        if self._adds_nothing():
            encode = self._tokenizer.backend_tokenizer.encode_batch_fast
            ids: list[int] = encode([text], add_special_tokens=add_special_tokens)[0].ids
            if self._adds_nothing():  # another thread may have turned on padding meanwhile
                return ids
        # verbose=False: no warning about length, which the engine checks
        listed: list[int] = self._tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"]
        return listed

    def pair(self, text: str, other: str) -> Any | None:
        """Two texts as the tokenizer joins them, an encoding of the `tokenizers` library; None if the class is unusual.

        By the wrapper, which turns off truncation and padding that the tokenizer was saved with.
        """
        return self._tokenizer(text, other, verbose=False).encodings[0] if self._is_usual else None

    @property
    def backend(self) -> Any | None:
        """The tokenizer behind the wrapper; None where the wrapper's class changes how text is tokenized."""
        return self._tokenizer.backend_tokenizer if self._is_usual else None

    def _adds_nothing(self) -> bool:
        """Whether the wrapper would neither cut nor pad, nor change how special tokens are read."""
        if not self._is_usual:
            return False
        backend = self._tokenizer.backend_tokenizer
        return (
            backend.truncation is None
            and backend.padding is None
            and backend.encode_special_tokens == self._tokenizer.split_special_tokens
        )
