"""Tokenizer and processor of the published files, `tekken.json` and `preprocessor_config.json`.

Transformers reads both; with mistral-common installed it takes that library's tokenizer instead, which reads special
tokens in no text. Knows no prompt and no item.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def load_tokenizer(path: Path) -> Any:
    """Return transformers' own tokenizer, with the uses of special tokens that the file does not say."""
    from transformers import PreTrainedTokenizerFast

    uses = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast.from_pretrained(path, **uses)


def load_processor(path: Path, tokenizer: Any) -> Any:
    """Return transformers' processor with this tokenizer."""
    from transformers import VoxtralProcessor, WhisperFeatureExtractor

    return VoxtralProcessor(WhisperFeatureExtractor.from_pretrained(path), tokenizer)
