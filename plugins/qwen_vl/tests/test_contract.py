"""All generations keep the contract; a larger model, too, gives transformers' tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from corellm_qwen_vl import Qwen3VL
from corellm_qwen_vl.contract import QwenReference
from corellm_qwen_vl.contract import TestQwen2_5VL as TestQwen2_5VL
from corellm_qwen_vl.contract import TestQwen2VL as TestQwen2VL
from corellm_qwen_vl.contract import TestQwen3VL as TestQwen3VL
from corellm_qwen_vl.original.contract import TestQwenVL as TestQwenVL
from corellm_qwen_vl.tiny import make_tiny_checkpoint
from corellm_testing.contract.greedy import GreedyRules


class TestLarger(GreedyRules):
    """Qwen3-VL with four layers and a decoder that is wider than the tower."""

    adapter = Qwen3VL
    reference = QwenReference

    @classmethod
    def make_checkpoint(cls, path: Path, seed: int = 0, **settings: Any) -> Path:
        larger = {"architecture": "Qwen3VLForConditionalGeneration", "hidden_size": 96, "num_layers": 4}
        return make_tiny_checkpoint(path, seed + 1, **{**larger, **settings})
