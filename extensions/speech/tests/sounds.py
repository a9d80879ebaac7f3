"""Sounds that differ all along, in which something is heard everywhere; and what transformers makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

RATE = 16_000
TOKENS = 24
"""Most of a window."""


def chirps(seconds: float, seed: int) -> NDArray[np.float32]:
    """Six tones of changing pitch and loudness, in noise."""
    random = np.random.default_rng(seed)
    times = np.arange(round(seconds * RATE)) / RATE
    sound = random.normal(scale=0.01, size=len(times))
    for _ in range(6):
        pitch, wave, swell, loud = random.uniform([80, 0.2, 0.1, 0.02], [4000, 3, 2, 0.2])
        tone = np.sin(2 * np.pi * pitch * times + 3 * np.sin(2 * np.pi * wave * times))
        sound += loud * tone * (0.5 + 0.5 * np.sin(2 * np.pi * swell * times))
    return sound.astype(np.float32)


@dataclass
class Heard:
    """What `generate` finds in an audio item."""

    token_ids: list[list[int]]
    """Of each segment."""
    times: list[tuple[float, float]]
    token_times: list[list[float]]
    """Of each segment's tokens; empty without `return_token_timestamps`."""
    judged: list[tuple[bool, bool]]
    """Of each try at a window: whether it was tried again, and whether the window was silent."""


class Oracle:
    """A checkpoint of Whisper in transformers.

    Args:
        path: of the checkpoint.
    """

    def __init__(self, path: Path) -> None:
        self._model = transformers.WhisperForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()
        self._extract = transformers.WhisperFeatureExtractor.from_pretrained(path)

    def __call__(self, samples: NDArray[np.float32], **arguments: Any) -> Heard:
        """Return what is found, the spectrogram of longer audio than a window made of the whole."""
        whole = {"truncation": False, "padding": "longest"} if len(samples) > self._extract.n_samples else {}
        made = self._extract(samples, sampling_rate=RATE, return_tensors="pt", return_attention_mask=True, **whole)
        if arguments.get("return_token_timestamps"):
            arguments["attention_mask"] = made["attention_mask"]
        judged: list[tuple[bool, bool]] = []

        def judge(*given: Any) -> tuple[bool, bool]:
            judged.append(type(self._model)._need_fallback(self._model, *given))
            return judged[-1]

        self._model._need_fallback = judge
        found = self._model.generate(
            made["input_features"], return_timestamps=True, return_segments=True, max_new_tokens=TOKENS, **arguments
        )
        (segments,) = found["segments"]
        return Heard(
            [one["tokens"].tolist() for one in segments],
            [(float(one["start"]), float(one["end"])) for one in segments],
            [one["token_timestamps"].tolist() for one in segments if "token_timestamps" in one],
            [(bool(again), bool(silent)) for again, silent in judged],
        )
