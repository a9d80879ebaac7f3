"""Audio to try a script with: two seconds of tones, made from a name. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from corellm_vllm.absent.exports import exports
from corellm_vllm.absent.table import takes
from corellm_vllm.assets.base import check_name, generator, written

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SECONDS = 2


class AudioAsset:
    """Made audio: the same for the same name.

    Args:
        name: any.
        rate: samples per second.
    """

    @takes({})
    def __init__(self, name: str, *, rate: int = 16_000) -> None:
        self.name, self._rate = check_name("audio", name), rate

    @property
    def audio_and_sample_rate(self) -> tuple[NDArray[np.float32], int]:
        """The samples, `[samples]`, and how many a second."""
        times = np.arange(_SECONDS * self._rate) / self._rate
        pitches = generator(self.name).integers(110, 880, 3)
        tones = sum(np.sin(2 * np.pi * pitch * times) for pitch in pitches) / 4
        return tones.astype(np.float32), self._rate

    def get_local_path(self) -> Path:
        """The path of its WAV file."""
        from corellm_vllm.multimodal.utils import wav_file

        return written(f"{self.name}.wav", wav_file(*self.audio_and_sample_rate))

    @property
    def url(self) -> str:
        """The `file:` URL of its WAV file."""
        return self.get_local_path().as_uri()


__all__ = ["AudioAsset"]
__getattr__ = exports(__name__)
