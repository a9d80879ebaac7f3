"""Qwen2-Audio keeps the contract: `pytest --pyargs corellm_qwen_audio.contract`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from corellm_qwen_audio import Qwen2Audio
from corellm_qwen_audio.tiny import make_tiny_checkpoint
from corellm_testing import AdapterContract


class TestQwen2Audio(AdapterContract):
    """An encoder of four seconds: shorter audio is padded, and the padding must not change its embeddings."""

    adapter = Qwen2Audio
    processor_kwargs = ({"truncation": True},)
    cut_by: ClassVar[Mapping[str, Mapping[str, Any]]] = {"audio": {"truncation": True}}
    without_effect: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("max_length", "pad_to_multiple_of", "padding"),
            "refused: the encoder takes spectrograms of one length only, and its padding is masked",
        ),
        "load_audio_backend": "refused: audio is decoded before the processor is called",
    }

    @classmethod
    def make_checkpoint(cls, path: Path, seed: int = 0, **settings: Any) -> Path:
        """Shorter than the published thirty seconds."""
        return make_tiny_checkpoint(path, seed, **{"seconds": 4, **settings})
