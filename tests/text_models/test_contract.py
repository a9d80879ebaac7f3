"""The adapter of text-only models keeps the contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from corellm.text_models import TextModel
from corellm_testing import TextContract
from corellm_testing.tiny_text import make_tiny_checkpoint


class TestLlamaForCausalLM(TextContract):
    """Llama; transformers is the reference."""

    adapter = TextModel
    architecture = "LlamaForCausalLM"

    @classmethod
    def make_checkpoint(cls, path: Path, seed: int = 0, **settings: Any) -> Path:
        """Return a checkpoint of text alone."""
        return make_tiny_checkpoint(path, seed, **settings)
