"""Audio files that child processes decode. Knows no formats."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from corellm.media.pool import Encoded, MediaPool

_BYTES_PER_SAMPLE = 16
"""Memory that decoding may take for each sample of the longest audio."""


def pooled_audio(
    pool: MediaPool, data: Encoded, name: str, sampling_rate: int, max_seconds: float, formats: Collection[str]
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Do as `audio.decode_audio`, in a child."""
    request = {
        "do": "audio", "name": name, "sampling_rate": sampling_rate, "max_seconds": max_seconds,
        "formats": list(formats),
    }  # fmt: skip
    most = math.ceil(max_seconds * sampling_rate) + 1
    with pool.reply(name, request, _BYTES_PER_SAMPLE * most, data) as reply:
        samples = np.empty(reply.count("samples", most), np.float32)
        reply.read_into(samples)
        reply.require(bool(np.isfinite(samples).all()))
    return samples
