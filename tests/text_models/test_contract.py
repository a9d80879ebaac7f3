"""The adapter of text-only models keeps the contract."""

from __future__ import annotations

from corellm.text_models import TextModel
from corellm_testing import TextContract


class TestLlamaForCausalLM(TextContract):
    """Llama; transformers is the reference."""

    adapter = TextModel
    architecture = "LlamaForCausalLM"
