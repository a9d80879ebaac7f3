"""Qwen2-Audio keeps the contract: `pytest --pyargs corellm_qwen_audio.contract`."""

from __future__ import annotations

from pathlib import Path

from corellm.testing import AdapterContract
from corellm_qwen_audio import Qwen2Audio
from corellm_qwen_audio.tiny import make_tiny_checkpoint


class TestQwen2Audio(AdapterContract):
    """An encoder of four seconds: shorter audio is padded, and the padding must not change its embeddings."""

    adapter = Qwen2Audio
    processor_kwargs = ({"truncation": True},)

    @classmethod
    def make_checkpoint(cls, path: Path, seed: int = 0) -> Path:
        """Shorter than the published thirty seconds."""
        return make_tiny_checkpoint(path, seed, seconds=4)
