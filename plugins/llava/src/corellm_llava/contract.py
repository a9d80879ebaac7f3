"""LLaVA keeps the contract: `pytest --pyargs corellm_llava.contract`."""

from __future__ import annotations

from corellm_llava import Llava
from corellm_testing import AdapterContract


class TestLlava(AdapterContract):
    """CLIP and Llama; transformers is the reference."""

    adapter = Llava
