"""Audio of any length, read as transformers' `generate` reads it for text with times: window by window.

A window is some frames of the spectrogram of the whole audio, which depend on samples nearby and on the loudest frame.
So that the whole spectrogram is never in memory, a window is made of its own samples, some around it, and a floor that
follows from the loudest frame. Whether that gives the frames of the whole is tried once. Knows spectrograms of feature
extractors that pad audio to a window; knows neither models nor tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corellm.errors import ProcessorKwargsError

ARGUMENT = "window"
"""The processor argument of an item that is a window: `[frames before it, frames of it, floor]`."""
_RANGE = 2.0
"""How far values of a spectrogram may be below the highest; lower ones are raised."""
_HIGHEST = 1e6
"""No value of a spectrogram is as far from 0; greater ones would become infinite in an encoder."""
_RAISED = 1e-4
"""Most that a value may differ from that of the whole."""


class Spectrograms:
    """What a feature extractor makes of samples: frames, one for every so many of them.

    Args:
        extractor: of the checkpoint's processor.
    """

    def __init__(self, extractor: Any) -> None:
        self._extractor = extractor
        self.rate = int(extractor.sampling_rate)
        self.hop, self.num_samples = int(extractor.hop_length), int(extractor.n_samples)
        self.margin = -(-int(extractor.n_fft) // (2 * self.hop)) + 1
        """Frames at each end that depend on what is beyond it."""
        self.window_frames = self.num_samples // self.hop

    def of(self, samples: NDArray[np.float32]) -> Tensor:
        """Return `[1, bins, num_samples // hop]`."""
        made = self._extractor(
            samples, sampling_rate=self.rate, padding="longest", truncation=False, return_tensors="pt"
        )
        features: Tensor = made["input_features"]
        return features

    def window(self, samples: NDArray[np.float32], given: Any) -> dict[str, Tensor]:
        """Return the tensors of a window, with silence behind it if it is shorter than others.

        Args:
            samples: its own, and some around it.
            given: the argument's value.

        Raises:
            ProcessorKwargsError: the value is wrong, or the samples do not have these frames.
        """
        try:
            before, frames, floor = int(given[0]), int(given[1]), float(given[2])
        except (TypeError, ValueError, LookupError, OverflowError):
            before, frames, floor = -1, 0, 0.0
        most = min(self.window_frames, len(samples) // self.hop - before)
        if not (0 <= before <= self.margin and 0 < frames <= most and abs(floor) <= _HIGHEST):
            raise ProcessorKwargsError(
                f"{ARGUMENT} must be [frames before, frames, floor], at most {self.margin} and {most} frames; "
                f"got {given!r:.100}",
                got=given,
            )
        features = self.of(samples)[:, :, before : before + frames].clamp(min=floor)
        return {"input_features": torch.nn.functional.pad(features, (0, self.window_frames - frames))}

    @cached_property
    def are_cut(self) -> bool:
        """Whether windows of audio have the frames of the whole."""
        noise = np.random.default_rng(0).normal(scale=0.1, size=self.num_samples * 3 // 2).astype(np.float32)
        noise[: len(noise) // 2] *= np.linspace(1e-6, 1e-3, len(noise) // 2, dtype=np.float32)
        whole, windows = self.of(noise), Windows(self, noise)
        if whole.shape[-1] != windows.num_frames:
            return False
        for start in (0, self.window_frames // 3, self.window_frames):
            (samples, _), kwargs = windows.at(start)
            made = self.window(samples, kwargs[ARGUMENT])["input_features"]
            wanted = whole[:, :, start : start + self.window_frames]
            if not torch.allclose(made[:, :, : wanted.shape[-1]], wanted, rtol=0, atol=_RAISED):
                return False
        return True


class Windows:
    """A long audio item, window by window; a `corellm.hookspecs.AudioWindows`.

    Args:
        spectrograms: what is made of samples.
        samples: of the item, `[num_samples]`; shorter ones than a window are followed by silence.
    """

    def __init__(self, spectrograms: Spectrograms, samples: NDArray[np.float32]) -> None:
        self._made = spectrograms
        self._given = samples
        silence = spectrograms.num_samples - len(samples)
        self._samples = np.pad(samples, (0, silence)) if silence > 0 else samples
        self._is_short = silence >= 0
        self.num_frames = len(self._samples) // spectrograms.hop

    def at(self, frame: int) -> tuple[tuple[NDArray[np.float32], int], Mapping[str, Any]]:
        """Return the item of the window from a frame on, and the processor arguments for it."""
        if self._is_short and frame == 0:
            return (self._given, self._made.rate), {}
        samples, before, frames = self._cut(frame)
        return (samples, self._made.rate), {ARGUMENT: [before, frames, self._floor]}

    def _cut(self, frame: int) -> tuple[NDArray[np.float32], int, int]:
        """Return samples of a window and around it, and numbers of frames: before it, and its own."""
        hop, margin = self._made.hop, self._made.margin
        before, frames = min(frame, margin), min(self.num_frames - frame, self._made.window_frames)
        end = frame + frames + margin
        last = len(self._samples) if end > self.num_frames else end * hop
        return self._samples[(frame - before) * hop : last], before, frames

    @cached_property
    def _floor(self) -> float:
        """The least value of the whole's spectrogram."""
        highest = -np.inf
        for frame in range(0, self.num_frames, self._made.window_frames):
            samples, before, frames = self._cut(frame)
            highest = max(highest, float(self._made.of(samples)[:, :, before : before + frames].max()))
        return float(highest - _RANGE)
