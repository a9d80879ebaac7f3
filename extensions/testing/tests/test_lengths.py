"""Where a processor cuts audio is found to the sample, whatever the processor is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from corellm_testing import Media, Reference
from corellm_testing.contract.lengths import CUT_SECONDS, longest_uncut

RATE = 1000


class Cutting(Reference):
    """A processor that takes the first `most` samples, and refuses audio longer than `longest` and shorter than 100."""

    def __init__(self, most: int, longest: int = 10**9) -> None:
        super().__init__(Path("nowhere"))
        self.most, self.longest = most, longest

    def process(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the samples."""
        (audio,) = media["audio"]
        if not 100 <= len(audio) <= self.longest:
            raise ValueError(len(audio))
        return {"samples": torch.from_numpy(audio[: self.most])}


@pytest.mark.parametrize("most", [100, 777, RATE, RATE + 1, 4 * RATE, 30 * RATE - 1, CUT_SECONDS * RATE])
def test_the_longest_audio_is_found_to_the_sample(most: int) -> None:
    """Shorter than the first that is tried, exactly as long, longer, and the longest that is found."""
    assert longest_uncut(Cutting(most), "", RATE) == most


@pytest.mark.parametrize("processor", [Cutting(10**9), Cutting(2 * CUT_SECONDS * RATE), Cutting(10**9, 5 * RATE)])
def test_what_is_not_cut_has_no_longest(processor: Cutting) -> None:
    """A processor that takes all, one that cuts beyond what is tried, and one that refuses what is too long."""
    assert longest_uncut(processor, "", RATE) is None
