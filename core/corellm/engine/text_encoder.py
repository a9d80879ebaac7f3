"""Text to token ids, as the checkpoint's tokenizer makes them.

Knows transformers' wrapper around a tokenizer of the `tokenizers` library, and when it adds nothing to it.
"""

from __future__ import annotations

from typing import Any


class TextEncoder:
    """Encodes text with a checkpoint's tokenizer.

    The wrapper's own bookkeeping takes longer than a short prompt's tokens, and other threads wait for it: where the
    wrapper has no ways of its own, the tokenizer behind it is asked.

    Args:
        tokenizer: a transformers tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

        self._tokenizer = tokenizer
        kind = type(tokenizer)
        plain = (
            isinstance(tokenizer, PreTrainedTokenizerFast)
            and kind.__call__ is PreTrainedTokenizerBase.__call__
            and kind._encode_plus is PreTrainedTokenizerFast._encode_plus
            and not hasattr(tokenizer, "_switch_to_input_mode")
        )
        self._backend = tokenizer.backend_tokenizer if plain else None

    def __call__(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The token ids of a text, with what the tokenizer puts around every text or without."""
        backend = self._backend
        if (
            backend is None
            or backend.truncation is not None
            or backend.padding is not None
            or backend.encode_special_tokens != self._tokenizer.split_special_tokens
        ):
            # verbose=False: whether it is too long is for the engine to say
            ids: list[int] = self._tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"]
            return ids
        (encoding,) = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(encoding.ids)
