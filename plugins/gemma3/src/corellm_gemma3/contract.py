"""Gemma 3 keeps the contract: `pytest --pyargs corellm_gemma3.contract`."""

from corellm.testing import AdapterContract
from corellm_gemma3 import Gemma3


class TestGemma3(AdapterContract):
    """The whole contract, on a tiny checkpoint."""

    adapter = Gemma3
