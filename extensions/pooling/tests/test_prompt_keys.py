"""Keys of prompts that other extensions read: for decoders that are pooled, as for those that generate."""

from __future__ import annotations

from pathlib import Path

import pytest

from corellm import LLM
from corellm.errors import PromptError
from corellm_testing.tiny_text import make_tiny_checkpoint
from extensions.pooling.tests.text_encoders.checkpoints import make_tiny_encoder
from tests.modelling.other_key import OtherKey

PROMPT = {"prompt": "one two three", "other": 1}


def test_a_decoder_takes_them(tmp_path: Path) -> None:
    with OtherKey().installed():
        llm = LLM(make_tiny_checkpoint(tmp_path), runner="pooling", dtype="float32")
    with llm:
        with_key, without = llm.embed([PROMPT, PROMPT["prompt"]], use_tqdm=False)
    assert with_key.outputs.embedding == without.outputs.embedding


def test_an_encoder_has_no_part_to_tell(tmp_path: Path) -> None:
    """It would be as if the key had not been given."""
    make_tiny_encoder(tmp_path, "BertModel", type_vocab_size=2)
    with OtherKey().installed():
        llm = LLM(tmp_path, dtype="float32")
    with llm, pytest.raises(PromptError, match="unknown prompt key 'other'"):
        llm.embed(PROMPT, use_tqdm=False)
