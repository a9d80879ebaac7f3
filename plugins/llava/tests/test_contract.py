"""LLaVA keeps the contract; a larger model, too, gives transformers' tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from corellm_llava import Llava
from corellm_llava.contract import TestLlava as TestLlava
from corellm_llava.tiny import make_tiny_checkpoint
from corellm_testing.contract.greedy import GreedyRules


class TestMid(GreedyRules):
    """Twice as wide and as deep: errors have room to grow."""

    adapter = Llava

    @classmethod
    def make_checkpoint(cls, path: Path, seed: int = 0, **settings: Any) -> Path:
        return make_tiny_checkpoint(path, seed, **{"hidden_size": 128, "num_layers": 4, **settings})
