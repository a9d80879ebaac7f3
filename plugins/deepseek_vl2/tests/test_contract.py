"""DeepSeek-VL2 keeps the contract; with the decoders of Tiny and of the largest, too, tokens are the reference's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from corellm_deepseek_vl2 import DeepseekVL2
from corellm_deepseek_vl2.contract import DeepseekVL2Reference
from corellm_deepseek_vl2.contract import TestDeepseekVL2 as TestDeepseekVL2
from corellm_deepseek_vl2.tiny import VARIANTS, make_tiny_checkpoint
from corellm_testing.contract.greedy import GreedyRules


class TestNoLatent(GreedyRules):
    """Attention of usual heads, as in DeepSeek-VL2-Tiny."""

    adapter = DeepseekVL2
    reference = DeepseekVL2Reference

    @classmethod
    def make_checkpoint(cls, path: Path, seed: int = 0, **settings: Any) -> Path:
        return make_tiny_checkpoint(path, seed, **{**VARIANTS["attention without a latent, as in Tiny"], **settings})


class TestSigmoid(GreedyRules):
    """Experts chosen by sigmoid with a correction, as in the largest; a wider decoder."""

    adapter = DeepseekVL2
    reference = DeepseekVL2Reference

    @classmethod
    def make_checkpoint(cls, path: Path, seed: int = 0, **settings: Any) -> Path:
        variant = VARIANTS["experts chosen by sigmoid, as in the largest"]
        return make_tiny_checkpoint(path, seed + 1, **{**variant, "hidden_size": 96, **settings})
