"""Audio of every kind comes out whole, mono, at the model's rate, sample for sample as librosa gives them; bad ones are
refused, early.

Files are written by libsndfile and FFmpeg; hostile ones are made from these byte by byte.
"""

from __future__ import annotations

import base64
import math
import os
import random
import subprocess
import sys
import wave
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import librosa
import numpy as np
import pytest
import soundfile
import torch

from corellm.config import MultiModalConfig
from corellm.errors import ConfigError, ContractError, MediaError, MediaTooLargeError
from corellm.multimodal import DataParser, dummy_audios
from corellm_media.audio import load_audio
from corellm_media.audio_files import _ogg_checksum

pytestmark = pytest.mark.filterwarnings("ignore:.*(aifc|audioop|sunau):DeprecationWarning")  # librosa imports them

RATE = 16_000
LONGEST = 20.0


def tones(num_samples: int, channels: int = 2, rate: int = 44_100) -> np.ndarray[Any, Any]:
    """A different tone and some noise in every channel, `[n, channels]`."""
    noise = np.random.default_rng(num_samples).standard_normal((num_samples, channels))
    at = np.arange(num_samples)[:, None] / rate
    signal = 0.3 * np.sin(2 * np.pi * 220 * (1 + np.arange(channels)) * at) + 0.03 * noise
    return signal.astype(np.float32)


def encoded(samples: np.ndarray[Any, Any], rate: int, container: str, subtype: str | None = None) -> bytes:
    """As libsndfile writes it."""
    buffer = BytesIO()
    soundfile.write(buffer, samples, rate, format=container, subtype=subtype)
    return buffer.getvalue()


def mp3_without_index(samples: np.ndarray[Any, Any], rate: int, bits_per_second: int) -> bytes:
    """As FFmpeg writes it into a pipe."""
    buffer = BytesIO()
    with av.open(buffer, "w", format="mp3", options={"write_xing": "0", "id3v2_version": "0"}) as container:
        stream = container.add_stream("libmp3lame", rate=rate)
        stream.bit_rate, stream.layout, stream.format = bits_per_second, "stereo", "fltp"
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples.T), format="fltp", layout="stereo")
        frame.sample_rate = rate
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    return buffer.getvalue()


def load(source: Any, rate: int = RATE) -> np.ndarray[Any, Any]:
    return load_audio(source, rate, LONGEST)


def as_librosa(data: bytes, rate: int = RATE) -> np.ndarray[Any, Any]:
    samples: np.ndarray[Any, Any] = librosa.load(BytesIO(data), sr=rate, mono=True, res_type="soxr_hq")[0]
    return samples


# --- files of every kind ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100, 48_000])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize(
    "kind",
    [
        ("WAV", "PCM_U8"), ("WAV", "PCM_16"), ("WAV", "PCM_24"), ("WAV", "PCM_32"), ("WAV", "FLOAT"), ("WAV", "DOUBLE"),
        ("WAV", "ULAW"), ("WAV", "ALAW"), ("WAV", "IMA_ADPCM"), ("WAV", "MS_ADPCM"), ("WAVEX", "PCM_16"),
        ("FLAC", "PCM_16"), ("FLAC", "PCM_24"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III"),
    ],
    ids="-".join,
)  # fmt: skip
def test_every_format_is_heard_as_librosa_hears_it(kind: tuple[str, str], channels: int, rate: int) -> None:
    """Formats, sample types, channels and rates. (What an MP3's decoder gives depends in the last bit on seeking.)"""
    if kind[1] == "OPUS" and rate == 44_100:  # which it does not have
        rate = 24_000
    data = encoded(tones(rate // 2 + 1, channels, rate), rate, *kind)
    got = load(data)
    assert got.dtype == np.float32
    assert got.ndim == 1
    assert np.allclose(got, as_librosa(data), rtol=0, atol=1e-6 if kind[0] == "MP3" else 0)
    if "ADPCM" not in kind[1]:  # comes in blocks
        assert len(got) == math.ceil((rate // 2 + 1) * (RATE / rate))


@pytest.mark.parametrize("channels", [3, 6, 8])
@pytest.mark.parametrize("rate", [11_025, 22_050, 96_000, 192_000, 384_000])
def test_unusual_rates_and_channels(rate: int, channels: int) -> None:
    """Longer than a block, so that resampling goes over borders."""
    data = encoded(tones(150_001, channels, rate), rate, "WAV", "PCM_16")
    assert np.array_equal(load(data), as_librosa(data))


def test_whatever_it_comes_in(tmp_path: Path) -> None:
    """Bytes, views, paths and text paths give the same."""
    data = encoded(tones(5000), 44_100, "FLAC")
    path = tmp_path / "some audio"
    path.write_bytes(data)
    want = load(data)
    for source in (bytearray(data), memoryview(data), path, str(path)):
        assert np.array_equal(load(source), want)


def test_a_file_of_the_standard_library(tmp_path: Path) -> None:
    """Known samples, written by another program: stereo is the mean of both."""
    path = tmp_path / "a.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(np.array([[0, 0], [32767, -32767], [16384, 0], [-32768, -32768]], "<i2").tobytes())
    assert load(path).tolist() == [0.0, 0.0, 0.25, -1.0]


def test_files_with_something_around_the_audio() -> None:
    """Tags before and after, and a WAV that was written to a pipe, which does not know its size."""
    samples = tones(30_000)
    tag = b"ID3\x04\x00\x00\x00\x00\x00\x0a" + bytes(10)
    mp3, flac, wav = (encoded(samples, 44_100, kind) for kind in ("MP3", "FLAC", "WAV"))
    assert np.array_equal(load(tag + mp3 + b"TAG" + bytes(125)), load(mp3))
    assert np.array_equal(load(flac + b"TAG" + bytes(125)), load(flac))
    assert np.array_equal(load(encoded(samples, 44_100, "OGG") + bytes(100)), load(encoded(samples, 44_100, "OGG")))
    at = wav.index(b"data") + 4
    for unknown in (b"\xff\xff\xff\xff", b"\x00\xf0\xff\x7f"):
        assert np.array_equal(load(wav[:4] + unknown + wav[8:at] + unknown + wav[at + 4 :]), load(wav))


def test_mp3_without_index_is_read_to_its_end() -> None:
    """MP3 files whose length the decoder only guesses, for lack of an index, are read to their end."""
    data = mp3_without_index(tones(100_000), 44_100, 64_000)
    assert len(load(data)) == pytest.approx(100_000 * RATE / 44_100, abs=1500)


# --- samples ----------------------------------------------------------------------------------------------------------

STEREO = tones(1000)
MONO = STEREO.mean(axis=1)


@pytest.mark.parametrize(
    "samples",
    [
        STEREO,
        STEREO.T,
        np.asfortranarray(STEREO),
        STEREO.astype(np.float64),
        STEREO.astype(">f4"),
        torch.from_numpy(STEREO),
        torch.from_numpy(STEREO).T.requires_grad_(),
        STEREO.tolist(),
        MONO,
        MONO[:, None],
        MONO.tolist(),
        np.repeat(MONO, 2)[::2],
    ],
)
def test_samples_of_any_layout(samples: Any) -> None:
    """At the model's rate they are taken as they are; the result is not the caller's memory."""
    got = load((samples, RATE))
    assert np.array_equal(got, MONO)
    assert got.dtype == np.float32
    assert not (isinstance(samples, np.ndarray) and np.shares_memory(got, samples))


def test_bare_samples_are_at_the_models_rate() -> None:
    """Arrays and tensors."""
    for samples in (MONO, MONO.astype(np.float64), torch.from_numpy(MONO)):
        assert np.array_equal(load(samples), MONO)


@pytest.mark.parametrize(
    ("samples", "want"),
    [
        (np.array([-32768, 0, 16384], np.int16), [-1, 0, 0.5]),
        (np.array([-(2**31), 0, 2**30], np.int32), [-1, 0, 0.5]),
        (np.array([0, 128, 192], np.uint8), [-1, 0, 0.5]),
        (torch.tensor([-32768, 0, 16384], dtype=torch.int16), [-1, 0, 0.5]),
        (torch.tensor([-1, 0, 0.5], dtype=torch.bfloat16), [-1, 0, 0.5]),
        (np.array([-1.5, 0, 2], np.float16), [-1.5, 0, 2]),
    ],
)
def test_integers_are_pcm_and_floats_are_not_clipped(samples: Any, want: list[float]) -> None:
    """Known values."""
    assert load((samples, RATE)).tolist() == want


@pytest.mark.parametrize("num_samples", [1, 2, 10, 1000, 200_001])
@pytest.mark.parametrize("rate", [1_000, 8_000, 11_025, 44_100, 48_000.0, np.int64(96_000), 384_000])
def test_resampling_is_librosas(rate: Any, num_samples: int) -> None:
    """Bit for bit, also of very short audio, whose last sample soxr leaves out."""
    samples = tones(num_samples, 1)[:, 0][: int(LONGEST * rate)]
    want = librosa.resample(samples, orig_sr=rate, target_sr=RATE, res_type="soxr_hq")
    assert np.array_equal(load((samples, rate)), want)


# --- what is refused --------------------------------------------------------------------------------------------------

NOISE = np.random.default_rng(0).bytes(5000)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (b"", "the data is empty"),
        (NOISE, "the data is not WAV, FLAC, Ogg, MP3, AAC, M4A, MP4, MKV or WebM audio"),
        (b"RIFF....AVI LIST", "not WAV"),
        (encoded(tones(99), 44_100, "AIFF"), "not WAV"),
        (encoded(tones(0), 44_100, "WAV"), r"empty \(0 samples\)"),
        (encoded(tones(0), 44_100, "OGG"), r"empty \(0 samples\)"),
        (b"RIFF" + NOISE[:4] + b"WAVE" + NOISE, "broken or truncated WAV"),
        (b"fLaC" + NOISE, "broken or truncated FLAC"),
        (b"OggS" + NOISE, "Ogg"),
        (b"ID3" + NOISE, "broken or truncated MP3"),
        (b"ID3\x04\0\0\0\0\0\x0a" + bytes(10) + encoded(tones(999), 44_100, "FLAC"), "but FLAC"),
        ("no/such/file.wav", "no such file"),
        (".", "is a directory"),
        (np.zeros(0, np.float32), r"empty \(0 samples\)"),
        (([], 44_100), r"empty \(0 samples\)"),
        ((np.zeros((2, 0)), RATE), r"empty \(0 samples\)"),
        (np.array([0.0, math.nan]), "not finite"),
        ((np.array([0.0, -math.inf]), 44_100), "not finite"),
        ((np.array([[math.inf], [-math.inf]]), 44_100), "not finite"),
        (np.array([1e300]), "not finite"),
        ((torch.tensor([math.nan]), 8_000), "not finite"),
        (encoded(np.array([0.0, math.nan, 0.0]), RATE, "WAV", "FLOAT"), "not finite"),
        (np.array([0.0, 12_000.0]), "12000, .*int16"),
        (([0, 500, -500], RATE), "dtype int64; give floats"),
        ((np.array([True]), RATE), "dtype bool"),
        ((np.array([1j]), RATE), "dtype complex128"),
        ((np.array(["a"]), RATE), "dtype <U1"),
        (([0.5, [0.5]], RATE), "one list per channel"),
        ((["0.5"], RATE), "dtype <U3"),
        ((None, RATE), "got NoneType"),
        (("a.wav", RATE), "samples .* got str"),
        ((MONO, "16000"), "rate .* got str"),
        ((MONO, True), "got bool"),
        ((MONO, math.nan), "sampling rate of nan Hz; accepted: 1000 to 384000"),
        ((MONO, 0), "sampling rate of 0 Hz"),
        ((MONO, -RATE), "sampling rate of -16000 Hz"),
        ((MONO, 10**9), r"sampling rate of 1e\+09 Hz"),
        ((MONO, 10**400), "sampling rate of inf Hz"),
        ((np.zeros((33, 40)), RATE), "33 channels, more than the 32"),
        ((np.zeros((2, 2, 2)), RATE), r"shape \(2, 2, 2\); give \[n\], \[channels, n\] or \[n, channels\]"),
        (np.float32(0.5), r"shape \(\)|is not audio"),
        (np.zeros((2, 100)), r"shape \(2, 100\): give \(samples, rate\).*a list if .*'audio_embeds'"),
        (torch.zeros(5, device="meta"), "dense tensor"),
        (torch.zeros(5).to_sparse(), "dense tensor"),
        (5, "int is not audio"),
        ([0.5], "list is not audio"),
        ({"array": MONO}, "dict is not audio"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,  # a file's bytes hold the time
)
def test_wrong_values_are_refused_with_a_reason(source: Any, words: str) -> None:
    """One short line without addresses."""
    with pytest.raises(MediaError, match=words) as caught:
        load(source)
    assert "0x" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


def test_devices_and_pipes_are_not_read(tmp_path: Path) -> None:
    """A pipe without a writer would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(MediaError, match="regular file"):
            load(path)


FILES = {
    "WAV": encoded(tones(40_000), 44_100, "WAV"),
    "FLAC": encoded(tones(40_000), 44_100, "FLAC"),
    "Vorbis": encoded(tones(40_000), 44_100, "OGG", "VORBIS"),
    "Opus": encoded(tones(40_000), 48_000, "OGG", "OPUS"),
    "MP3": encoded(tones(40_000), 44_100, "MP3"),
}


@pytest.mark.parametrize("name", FILES)
def test_truncated_audio_is_an_error(name: str) -> None:
    """A file cut anywhere, or with a piece missing, is an error and not shorter audio."""
    data = FILES[name]
    for end in {*range(1, 200, 7), *(len(data) * i // 50 for i in range(1, 50)), len(data) - 1}:
        with pytest.raises(MediaError):
            load(data[:end])
    for start in (len(data) * i // 10 for i in range(1, 10)):
        with pytest.raises(MediaError):
            load(data[:start] + data[start + 200 :])


@pytest.mark.parametrize("name", ["FLAC", "Vorbis", "Opus"])
def test_formats_with_checksums_notice_a_changed_byte(name: str) -> None:
    """Decoders of Ogg leave out a page that is wrong and play on."""
    for position in range(100, len(FILES[name]), len(FILES[name]) // 30):
        broken = bytearray(FILES[name])
        broken[position] ^= 0x55
        with pytest.raises(MediaError, match="broken"):
            load(bytes(broken))


def test_audio_files_joined_end_to_end() -> None:
    """Decoders play the first and say nothing of the others."""
    high, low = (mp3_without_index(tones(40_000), 44_100, rate) for rate in (320_000, 64_000))
    joined = [FILES["Vorbis"] + FILES["Opus"], FILES["MP3"] + FILES["MP3"], FILES["MP3"] + low]
    for data in joined:
        with pytest.raises(MediaError, match=r"several (Ogg|MP3) files"):
            load(data)
    with pytest.raises(MediaError, match=r"only .* seconds"):
        load(high + low * 3)  # the guess from the first frame's bit rate is too short


def test_any_damage_is_an_error_or_finite_audio() -> None:
    """Files with bytes changed, left out and put in: nothing else is raised, and nothing but samples comes out."""
    rng = random.Random(0)
    for data in FILES.values():
        for _ in range(60):
            broken = bytearray(data)
            for _ in range(rng.choice([1, 2, 8])):
                at = rng.randrange(min(rng.choice([64, len(broken)]), len(broken)))
                broken[at : at + rng.choice([0, 1, 4, 30])] = rng.choice([b"", b"\xff" * 4, bytes(4), rng.randbytes(9)])
            try:
                samples = load(bytes(broken))
            except MediaError:
                continue
            assert samples.size
            assert np.isfinite(samples).all()


# --- limits -----------------------------------------------------------------------------------------------------------


def with_flac_length(data: bytes, frames: int) -> bytes:
    """A FLAC that announces another number of frames; 0 is "unknown"."""
    changed = bytearray(data)
    changed[21] = changed[21] & 0xF0 | frames >> 32
    changed[22:26] = (frames & 0xFFFFFFFF).to_bytes(4, "big")
    return bytes(changed)


def test_too_long_by_its_header() -> None:
    """Nothing is decoded."""
    for data in (
        encoded(np.zeros((RATE * 21, 1)), RATE, "WAV"),
        with_flac_length(FILES["FLAC"], 2**36 - 1),
        encoded(np.zeros(RATE * 21), RATE, "MP3"),
        encoded(np.zeros(RATE * 21), RATE, "OGG"),
    ):
        with pytest.raises(MediaTooLargeError, match=r"seconds or more, .* 20 allowed") as caught:
            load(data)
        assert caught.value.expected == LONGEST
        assert caught.value.got > LONGEST


def test_too_long_while_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute of silence in 8 channels is 23 KB of FLAC and 92 MB of samples. It does not say how long it is.

    It is refused at the block that is too long.
    """
    harmless = with_flac_length(encoded(np.zeros((100, 8), np.int16), 48_000, "FLAC"), 0)
    silence = with_flac_length(encoded(np.zeros((48_000 * 60, 8), np.int16), 48_000, "FLAC"), 0)
    assert len(load(harmless)) == 34
    assert len(silence) < 30_000
    read, decoded = soundfile.SoundFile.read, [0]

    def counted(reader: Any, *arguments: Any, **options: Any) -> Any:
        block = read(reader, *arguments, **options)
        decoded.append(len(block))
        return block

    monkeypatch.setattr(soundfile.SoundFile, "read", counted)
    with pytest.raises(MediaTooLargeError, match="the 20 allowed") as caught:
        load(silence)
    assert caught.value.expected == LONGEST
    assert max(decoded) <= 1 << 16
    assert 20 * 48_000 < sum(decoded) <= 20 * 48_000 + (1 << 16)


def test_samples_that_are_too_long() -> None:
    """By their shape, before they are converted."""
    with pytest.raises(MediaTooLargeError, match=r"20\.1 seconds"):
        load((np.broadcast_to(np.zeros(1, np.int16), (2, 402_000)), 20_000))
    with pytest.raises(MediaTooLargeError, match=r"12288000 samples, .* 7680000"):
        load((np.broadcast_to(np.zeros(1, np.int16), (32, 384_000)), 19_200.0))
    assert len(load(np.zeros(int(LONGEST * RATE)))) == LONGEST * RATE


@pytest.mark.parametrize(
    ("offset", "value", "words"),
    [
        (24, (2**31 - 1).to_bytes(4, "little"), r"sampling rate of 2\.14748e\+09 Hz"),
        (24, (1).to_bytes(4, "little"), "sampling rate of 1 Hz"),
        (24, bytes(4), "broken or truncated WAV"),
        (22, (1000).to_bytes(2, "little"), "1000 channels, more than the 32 allowed"),
        (22, bytes(2), "broken or truncated WAV"),
        (4, b"", "truncated"),
    ],
)
def test_hostile_headers(offset: int, value: bytes, words: str) -> None:
    """Rates and channels that no audio has."""
    data = FILES["WAV"]
    with pytest.raises(MediaError, match=words):
        load(data[:offset] + value + data[offset + len(value) :] if value else data[:-10])


def test_many_tiny_parts_are_refused() -> None:
    """Headers are walked over in Python: chunks and pages are counted."""
    page = bytearray(b"OggS" + bytes(23))
    page[22:26] = _ogg_checksum(bytes(page)).to_bytes(4, "little")
    for data in (b"RIFF\0\0\0\0WAVE" + bytes(8) * 700_000, bytes(page) * 700_000):
        with pytest.raises(MediaError, match="500000 parts"):
            load(data)
    for data in (b"ID3\x04\0\0\0\0\0\0" * 100_000, b"OggS" + bytes(10**6)):
        with pytest.raises(MediaError):
            load(data)


# --- threads and imports ----------------------------------------------------------------------------------------------


def test_many_threads_hear_the_same() -> None:
    """Decoders and resamplers share nothing."""
    wanted = {name: load(data) for name, data in FILES.items()}
    names = [*FILES] * 6
    with ThreadPoolExecutor(8) as pool:
        for name, got in zip(names, pool.map(lambda name: load(FILES[name]), names), strict=True):
            assert np.array_equal(got, wanted[name])


def test_nothing_is_imported_that_is_not_needed() -> None:
    """Samples at the model's rate need neither library, a file at that rate no resampling."""
    code = (
        "import sys, io, numpy as np\n"
        "import corellm.multimodal\n"
        "from corellm_media.audio import load_audio\n"
        "load_audio((np.zeros(9), 16000), 16000, 9.0)\n"
        "assert not {'soundfile', 'soxr', 'librosa', 'torch'} & set(sys.modules)\n"
        "load_audio(sys.stdin.buffer.read(), 44100, 9.0)\n"
        "assert 'soundfile' in sys.modules and not {'soxr', 'librosa', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], input=FILES["WAV"], check=True)


# --- in a request -----------------------------------------------------------------------------------------------------


@pytest.fixture
def parser() -> DataParser:
    """For a model that hears 16 kHz."""
    return DataParser(MultiModalConfig(max_audio_seconds=LONGEST), hidden_size=16, sampling_rate=RATE)


URL = "data:audio/wav;base64," + base64.b64encode(FILES["WAV"]).decode()


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (FILES["WAV"], 1),
        (URL, 1),
        ([FILES["WAV"], URL, (MONO, 8_000), MONO], 4),
        ((MONO, 8_000), 1),
        ((MONO, np.float32(8_000)), 1),
        ((MONO.tolist(), 8_000), 1),
        ([(MONO, 8_000)], 1),
        ((MONO, MONO), 2),
        ([MONO, MONO], 2),
        (MONO, 1),
        (torch.from_numpy(MONO), 1),
        ([], 0),
    ],
)
def test_counted_alike_before_and_after(parser: DataParser, value: Any, count: int) -> None:
    """One value or a list; a pair with a number is one item."""
    assert parser.count({"audio": value}) == {"audio": count}
    items = parser.parse({"audio": value})["audio"]
    assert items.count == count
    for i in range(count):
        assert items.get(i).dtype == np.float32
        assert items.num_embeddings(i) is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"hello", "audio 1: the data is not WAV"),
        ("https://example.com/a.mp3", "audio 1: .*allowed_media_domains"),
        ("a.mp3", r"audio 1: no such file: 'a\.mp3'"),
        (np.zeros(RATE * 21), r"audio 1: 21\.0 seconds or more"),
        (None, "audio 1: None"),
        (0.5, "audio 1: float is not audio"),
    ],
)
def test_errors_name_the_item(parser: DataParser, value: Any, words: str) -> None:
    """Modality and index."""
    with pytest.raises(MediaError, match=words) as caught:
        parser.parse({"audio": [MONO, value]})["audio"].get(1)
    assert (caught.value.modality, caught.value.item) == ("audio", 1)


def test_the_rate_is_read_only_when_there_is_audio() -> None:
    """A Hugging Face processor takes seconds to make."""
    asked: list[int] = []

    def rate() -> int:
        asked.append(1)
        return 8_000

    parser = DataParser(sampling_rate=rate)
    parser.parse({"audio": [], "audio_embeds": None})
    assert parser.count({"audio": MONO}) == {"audio": 1}
    assert not asked
    assert len(parser.parse({"audio": (MONO, RATE)})["audio"].get(0)) == len(MONO) // 2
    assert asked
    with pytest.raises(ContractError, match="needs a sampling_rate"):
        DataParser().parse({"audio": MONO})


def test_dummies() -> None:
    """Dummy audios have the length asked for, and each is an array of its own."""
    first, second = dummy_audios(2, num_samples=1000)
    assert first.shape == (1000,)
    assert first.dtype == np.float32
    assert np.abs(first).max() <= 0.5
    assert np.std(first) > 0.2
    assert not np.shares_memory(first, second)
    assert dummy_audios(0, num_samples=1) == []


@pytest.mark.parametrize("value", [-1, math.inf, math.nan, "600", True])
def test_the_limit_is_validated(value: Any) -> None:
    """A number of seconds."""
    with pytest.raises(ConfigError, match="max_audio_seconds"):
        MultiModalConfig(max_audio_seconds=value)
