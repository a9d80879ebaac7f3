"""Florence-2 keeps the contract: `pytest --pyargs corellm_florence2.contract`."""

from __future__ import annotations

from corellm.testing import AdapterContract
from corellm_florence2 import Florence2


class TestFlorence2(AdapterContract):
    """DaViT and BART; transformers is the reference."""

    adapter = Florence2
