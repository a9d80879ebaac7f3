"""Molmo keeps the contract, with a decoder of either kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from corellm_molmo import Molmo
from corellm_molmo.contract import MolmoReference
from corellm_molmo.contract import TestMolmo as TestMolmo
from corellm_molmo.tiny import make_tiny_checkpoint
from corellm_testing.contract.engine import ItemEngineRules


class TestOlmo(ItemEngineRules):
    """As 7B-O, with four layers: norms behind attention and MLP, and of queries and keys."""

    adapter = Molmo
    reference = MolmoReference
    processor_kwargs = ({"max_crops": 2},)

    @classmethod
    def make_checkpoint(cls, path: Path, seed: int = 0, **settings: Any) -> Path:
        return make_tiny_checkpoint(path, seed + 1, **{"decoder": "olmo2", "num_layers": 4, **settings})
