"""Where audio is cut, and how subtitles are written: proven on made-up sounds and segments."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corellm_speech import Segment, srt, vtt
from corellm_speech.pieces import cuts

RATE = 1000


def sound(*lengths: int) -> np.ndarray:
    """Noise and pauses by turns, of so many samples each."""
    random = np.random.default_rng(0)
    parts = [random.uniform(-1, 1, length) if i % 2 == 0 else np.zeros(length) for i, length in enumerate(lengths)]
    return np.concatenate(parts).astype(np.float32)


def test_audio_is_cut_in_its_pauses() -> None:
    """In the middle of what a piece may reach of its last pause; what fits is not cut."""
    samples = sound(1700, 200, 1500, 300, 400)
    assert [*cuts(samples, RATE, 2.0)] == [(0, 1800), (1800, 3500), (3500, 4100)]
    assert [*cuts(samples, RATE, 4.1)] == [(0, 4100)]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 20_000), st.floats(0.5, 5.0), st.integers(0, 5))
def test_pieces_are_all_of_the_audio(length: int, seconds: float, seed: int) -> None:
    """One behind the other, none longer than may be, and of several none shorter than a quarter of that."""
    samples = np.random.default_rng(seed).normal(size=length).astype(np.float32)
    found = [*cuts(samples, RATE, seconds)]
    longest = int(seconds * RATE)
    assert [start for start, _ in found] == [0, *(end for _, end in found[:-1])]
    assert found[-1][1] == length
    assert all(end - start <= longest for start, end in found)
    assert len(found) == 1 or min(end - start for start, end in found) >= longest // 4


@pytest.mark.parametrize(("write", "mark", "head"), [(srt, ",", "1\n"), (vtt, ".", "WEBVTT\n\n")])
def test_subtitles(write: object, mark: str, head: str) -> None:
    """Times are exact to the thousandth; a text has one line, which is no other cue."""
    segments = [Segment(0.0, 1.2345, " a --> b\n\n2 ", []), Segment(59.9996, 3661.5, "c", [])]
    text = write(segments)  # type: ignore[operator]
    assert text.startswith(head + f"00:00:00{mark}000 --> 00:00:01{mark}234\na -> b 2\n\n")
    assert f"00:01:00{mark}000 --> 01:01:01{mark}500\nc\n\n" in text
    assert write([]) == ("" if write is srt else "WEBVTT\n\n")  # type: ignore[operator]
