"""InternVL keeps the contract; a larger model in several files, too, gives transformers' tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from corellm_internvl import InternVLChat
from corellm_internvl.contract import InternVLReference
from corellm_internvl.contract import TestInternVLChat as TestInternVLChat
from corellm_internvl.tiny import make_tiny_checkpoint
from corellm_testing.contract.greedy import GreedyRules


class TestMid(GreedyRules):
    """Wider than the tower and twice as deep: errors have room to grow."""

    adapter = InternVLChat
    reference = InternVLReference

    @classmethod
    def make_checkpoint(cls, path: Path, seed: int = 0, **settings: Any) -> Path:
        return make_tiny_checkpoint(path, seed, **{"hidden_size": 128, "num_layers": 4, "num_shards": 3, **settings})
