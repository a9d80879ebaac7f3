"""LLaVA keeps the contract; every tower, text model, feature layer and select strategy gives transformers' tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from corellm.testing.contract.greedy import GreedyRules
from corellm_llava import Llava
from corellm_llava.contract import TestLlava as TestLlava
from corellm_llava.tiny import make_tiny_checkpoint


class _Variant(GreedyRules):
    adapter = Llava
    options: ClassVar[dict[str, Any]]

    @classmethod
    def make_checkpoint(cls, path: Path, seed: int = 0) -> Path:
        return make_tiny_checkpoint(path, seed, **cls.options)


class TestMid(_Variant):
    """Twice as wide and as deep: errors have room to grow."""

    options: ClassVar = {"hidden_size": 128, "num_layers": 4}


class TestSiglipQwen2(_Variant):
    """A tower without a class token, squeezed images."""

    options: ClassVar = {"vision": "siglip", "text": "qwen2"}


class TestMistralFull(_Variant):
    """The class token is kept."""

    options: ClassVar = {"text": "mistral", "vision_feature_select_strategy": "full"}


class TestSeveralLayers(_Variant):
    """Features of two of the tower's layers."""

    options: ClassVar = {"vision_feature_layer": [-2, 1]}
