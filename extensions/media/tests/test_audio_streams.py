"""AAC, M4A and audio tracks of videos: the samples PyAV decodes, whole or refused.

Oracles: PyAV's decoding from start to end, librosa's resampling, known tones.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import librosa
import numpy as np
import pytest

from corellm.errors import MediaError, MediaTooLargeError
from corellm.media.pool import MediaPool
from corellm_media.audio import load_audio
from extensions.media.tests.videos import encode, plain

pytestmark = pytest.mark.filterwarnings("ignore:.*(aifc|audioop|sunau):DeprecationWarning")  # librosa imports them

RATE = 16_000
KINDS = {
    "M4A": ("ipod", "aac", 44_100),
    "M4A, ALAC": ("ipod", "alac", 44_100),
    "MP4": ("mp4", "aac", 48_000),
    "MP4, fragments": ("mp4", "aac", 44_100),
    "MP4, MP3": ("mp4", "libmp3lame", 44_100),
    "MOV": ("mov", "aac", 22_050),
    "AAC": ("adts", "aac", 44_100),
    "AAC at the model's rate": ("adts", "aac", RATE),
    "MKV": ("matroska", "aac", 44_100),
    "MKV, FLAC": ("matroska", "flac", 44_100),
    "WebM, Opus": ("webm", "libopus", 48_000),
}
FRAGMENTS = {"movflags": "frag_keyframe+empty_moov+default_base_moof", "frag_duration": "200000"}


def tones(num_samples: int, rate: int, channels: int = 2) -> np.ndarray[Any, Any]:
    """A different tone in every channel, `[channels, n]`."""
    at = np.arange(num_samples) / rate
    return np.stack([0.3 * np.sin(2 * np.pi * 440 * (1 + n) * at) for n in range(channels)]).astype(np.float32)


def encoded(kind: str, samples: np.ndarray[Any, Any], *, with_video: bool = False) -> bytes:
    """A file of samples `[channels, n]`, as FFmpeg writes it."""
    container, codec, rate = KINDS[kind]
    layout = {1: "mono", 2: "stereo"}[len(samples)]
    buffer = BytesIO()
    with av.open(buffer, "w", container, container_options=FRAGMENTS if "fragments" in kind else {}) as output:
        if with_video:
            video: Any = output.add_stream("mpeg4", 25)
            video.width = video.height = 64
            video.pix_fmt = "yuv420p"
        stream: Any = output.add_stream(codec, rate=rate, layout=layout)
        if with_video:
            for packet in [*video.encode(av.VideoFrame.from_ndarray(plain(0, 64, 64))), *video.encode(None)]:
                output.mux(packet)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), format="fltp", layout=layout)
        frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        converter = av.AudioResampler(format=stream.format.name, layout=layout, rate=rate, frame_size=stream.frame_size)
        for part in [*converter.resample(frame), *converter.resample(None)]:
            for packet in stream.encode(part):
                output.mux(packet)
        for packet in stream.encode(None):
            output.mux(packet)
    return buffer.getvalue()


def as_pyav(data: bytes) -> tuple[np.ndarray[Any, Any], int]:
    """All samples `[channels, n]` of the first audio track, in float32, and their rate."""
    blocks = []
    with av.open(BytesIO(data)) as container:
        converter = av.AudioResampler(format="fltp")
        for frame in container.decode(audio=0):
            frame.pts = None
            blocks += [part.to_ndarray() for part in converter.resample(frame)]
            rate = frame.sample_rate
    return np.concatenate(blocks, axis=1), rate


def load(source: Any, max_seconds: float = 20.0) -> np.ndarray[Any, Any]:
    return load_audio(source, RATE, max_seconds)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_heard_as_pyav_and_librosa_hear_it(kind: str, channels: int) -> None:
    """Decoded whole, mono by the mean, resampled as `librosa.resample` does."""
    rate = KINDS[kind][2]
    data = encoded(kind, tones(rate + 123, rate, channels))
    samples, decoded_rate = as_pyav(data)
    assert decoded_rate == rate
    assert samples.shape[1] == pytest.approx(rate + 123, abs=3000)  # encoders fill up their first and last frame
    mono = samples.mean(axis=0)
    expected = mono if rate == RATE else librosa.resample(mono, orig_sr=rate, target_sr=RATE, res_type="soxr_hq")
    got = load(data)
    assert (got.dtype, got.shape) == (np.float32, expected.shape)
    assert np.allclose(got, expected, rtol=0, atol=1e-6)
    assert np.abs(np.fft.rfft(got)).argmax() * RATE / len(got) == pytest.approx(440, abs=441)
    assert np.abs(got).max() > 0.2


@pytest.mark.parametrize("kind", ["M4A", "AAC", "WebM, Opus"])
def test_whatever_it_comes_in(kind: str, tmp_path: Path) -> None:
    """Bytes, views, paths and text paths give the same."""
    data = encoded(kind, tones(20_000, KINDS[kind][2]))
    path = tmp_path / "audio"
    path.write_bytes(data)
    for source in (bytearray(data), memoryview(data), path, str(path)):
        assert np.array_equal(load(source), load(data))


@pytest.mark.parametrize("kind", ["MP4", "MKV"])
def test_of_a_video_the_audio_track_is_read(kind: str) -> None:
    """And a video without one is refused."""
    data = encoded(kind, tones(48_000, KINDS[kind][2]), with_video=True)
    mono = as_pyav(data)[0].mean(axis=0)
    expected = librosa.resample(mono, orig_sr=KINDS[kind][2], target_sr=RATE, res_type="soxr_hq")
    assert np.allclose(load(data), expected, rtol=0, atol=1e-6)
    silent = encode([plain(0)], container=KINDS[kind][0])
    with pytest.raises(MediaError, match="no audio"):
        load(silent)


@pytest.mark.parametrize("kind", ["M4A", "M4A, ALAC", "MP4, fragments", "AAC", "MKV", "WebM, Opus"])
def test_cut_anywhere_it_is_refused(kind: str) -> None:
    """Never half of it. (AAC cut between frames, or MP4 between fragments, is whole: nothing says what follows.)"""
    data = encoded(kind, tones(30_000, KINDS[kind][2]))
    whole = len(load(data))
    taken = 0
    for length in range(1, len(data) - 1, 53):
        with contextlib.suppress(MediaError):
            assert len(load(data[:length])) < whole
            taken += 1
    assert taken <= (2 if kind in ("AAC", "MP4, fragments") else 0)


@pytest.mark.parametrize("kind", ["M4A", "AAC", "MKV", "WebM, Opus"])
def test_damaged_anywhere_nothing_worse_happens_than_an_error(kind: str) -> None:
    """Random bytes changed: finite samples or a MediaError, no third thing."""
    data = encoded(kind, tones(30_000, KINDS[kind][2]))
    rng = np.random.default_rng(0)
    for trial in range(150):
        damaged = bytearray(data)
        for place in rng.integers(0, len(data) if trial % 2 else 600, size=3):
            damaged[place] = rng.integers(0, 256)
        with contextlib.suppress(MediaError):
            assert np.isfinite(load(bytes(damaged))).all()


def test_a_hole_in_aac_is_refused() -> None:
    """The demuxer would go on at the next whole frame; tags behind the last one are no hole."""
    data = encoded("AAC", tones(44_100, 44_100))
    with pytest.raises(MediaError, match="broken or truncated"):
        load(data[:4000] + data[5000:])
    assert np.array_equal(load(data + b"TAG" + bytes(125)), load(data))


@pytest.mark.parametrize("kind", ["M4A", "AAC", "MKV"])
def test_too_long_is_refused_while_it_is_decoded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as more than allowed has come out; what is as long as allowed is read."""
    data = encoded(kind, tones(3 * 44_100, 44_100))
    assert len(load(data, 3.2)) > 3 * RATE
    decoded = []
    decode = av.AudioFrame.to_ndarray
    monkeypatch.setattr("corellm_media.audio_streams._samples", counting(decoded, decode))
    with pytest.raises(MediaTooLargeError, match=r"0\.5 allowed"):
        load(data, 0.5)
    assert sum(decoded) < 0.6 * 44_100


def counting(decoded: list[int], decode: Callable[..., Any]) -> Callable[[Any], Any]:
    """What decodes a frame, and notes how many samples it had."""

    def decode_and_count(frame: Any) -> Any:
        decoded.append(frame.samples)
        return decode(frame)

    return decode_and_count


def test_a_table_that_announces_too_much_is_refused(media_pool: MediaPool) -> None:
    """And none as long is made."""
    data = bytearray(encoded("M4A", tones(44_100, 44_100)))
    at = data.index(b"stsz") + 8
    struct.pack_into(">II", data, at, 1, 2**31)
    with pytest.raises(MediaError, match="no samples"):
        load_audio(bytes(data), RATE, 20.0, pool=media_pool)


def test_a_codec_that_is_not_read() -> None:
    """Named by what is read instead."""
    buffer = BytesIO()
    with av.open(buffer, "w", "matroska") as output:
        stream: Any = output.add_stream("ac3", rate=48_000, layout="stereo")
        frame = av.AudioFrame.from_ndarray(tones(1536, 48_000), format="fltp", layout="stereo")
        frame.sample_rate = 48_000
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            output.mux(packet)
    with pytest.raises(MediaError, match=r"codec .* supported: aac, alac"):
        load(buffer.getvalue())
