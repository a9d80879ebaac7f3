"""Chameleon keeps the contract; a larger model, too, gives transformers' tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from corellm_chameleon import Chameleon
from corellm_chameleon.contract import TestChameleon as TestChameleon
from corellm_chameleon.tiny import make_tiny_checkpoint
from corellm_testing.contract.greedy import GreedyRules


class TestMid(GreedyRules):
    """Twice as wide and as deep: errors have room to grow."""

    adapter = Chameleon

    @classmethod
    def make_checkpoint(cls, path: Path, seed: int = 0, **settings: Any) -> Path:
        larger = {"hidden_size": 128, "num_layers": 4, "model_parallel_size": 2}
        return make_tiny_checkpoint(path, seed, **{**larger, **settings})
