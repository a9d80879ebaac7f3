"""Text-only models keep the contract: `pytest --pyargs corellm.text_models.contract`."""

from __future__ import annotations

from corellm.testing import TextContract
from corellm.text_models import TextModel


class TestLlamaForCausalLM(TextContract):
    """Llama; transformers is the reference."""

    adapter = TextModel
    architecture = "LlamaForCausalLM"
