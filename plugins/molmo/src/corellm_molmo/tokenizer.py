"""The checkpoint's tokenizer, with the token before every text that the published processor puts there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

IMAGE_PATCH = "<im_patch>"
IMAGE_TOKENS = ("<im_start>", "<im_end>", IMAGE_PATCH, "<im_col>")


def load_tokenizer(path: Path) -> Any:
    """Load the tokenizer from `tokenizer.json`; runs no code of the checkpoint.

    Args:
        path: the checkpoint's directory.
    """
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
    begin = beginning(tokenizer)
    token = tokenizer.convert_ids_to_tokens(begin)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A $B", special_tokens=[(token, begin)]
    )
    return tokenizer


def beginning(tokenizer: Any) -> int:
    """Return the token before every text: where there is none for that, the one that ends texts."""
    begin: int = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    return begin
