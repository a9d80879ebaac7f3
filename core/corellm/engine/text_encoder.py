"""Text to token ids, as the checkpoint's tokenizer makes them.

Knows transformers' wrapper around a tokenizer of the `tokenizers` library, and when it adds nothing to it.
"""

from __future__ import annotations

from typing import Any

_STEPS = (
    "__call__", "_encode_plus", "_convert_encoding", "_get_padding_truncation_strategies", "backend_tokenizer",
    "set_truncation_and_padding",
)  # fmt: skip
"""What of the wrapper a text passes."""


class TextEncoder:
    """Encodes text with a checkpoint's tokenizer.

    The wrapper's own bookkeeping takes longer than a short prompt's tokens, and other threads wait for it: where the
    wrapper has no ways of its own, the tokenizer behind it is asked.

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
        """The token ids of a text, with what the tokenizer puts around every text or without."""
        if self._adds_nothing():
            encode = self._tokenizer.backend_tokenizer.encode_batch_fast
            ids: list[int] = encode([text], add_special_tokens=add_special_tokens)[0].ids
            if self._adds_nothing():  # still: another thread may have asked for padding meanwhile
                return ids
        # verbose=False: whether it is too long is for the engine to say
        told: list[int] = self._tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"]
        return told

    @property
    def backend(self) -> Any | None:
        """The tokenizer behind the wrapper; None where the wrapper has ways of its own."""
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
