"""Audio in any accepted form to mono float32 samples at the model's rate.

Knows sample formats, channels, rates and limits of length. `audio_files` checks that a file is whole, `audio_streams`
decodes what only FFmpeg reads. Knows neither requests nor models. Files are decoded in blocks, and each block is
resampled by soxr at once (bit for bit the samples of `librosa.load`), so that neither a false header nor a small file
full of silence takes more memory than the longest audio allowed.

- Channels become one by their mean.
- Integers are PCM: int16 and int32 are divided by their largest magnitude, uint8 is centred on 128.
- Floats are taken as they are, about -1 to 1.

soundfile, soxr and PyAV are each imported when first needed.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from io import BytesIO
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from corellm.config import MEDIA_FORMATS
from corellm.errors import MediaError, MediaTooLargeError
from corellm.media.files import check_format, name_of, read_file
from corellm.media.type_checks import is_array, is_tensor
from corellm_media.audio_files import check_mp3_end, check_ogg, check_wav, states_mp3_length
from corellm_media.pooled_audio import pooled_audio

if TYPE_CHECKING:
    from corellm.media.pool import MediaPool

MAX_CHANNELS = 32
MIN_RATE, MAX_RATE = 1_000, 384_000
"""Hertz. A header may announce any number; extreme ratios of rates need filters of any size."""

_SAMPLES_PER_SECOND = 2 * 192_000
"""Samples of all channels together that may be decoded, per second of the longest audio allowed."""
_LOUDEST = 256.0
"""Far above what any recording reaches, far below what 16-bit PCM in floats does."""
_BLOCK_FRAMES = 1 << 16

_FORMATS: tuple[tuple[str, re.Pattern[bytes], frozenset[str] | str], ...] = (
    # Name, signature, and libsndfile's names for it (a set) or FFmpeg's (a string).
    ("WAV", re.compile(rb"RIFF.{4}WAVE", re.DOTALL), frozenset({"WAV", "WAVEX"})),
    ("FLAC", re.compile(rb"fLaC"), frozenset({"FLAC"})),
    ("Ogg", re.compile(rb"OggS"), frozenset({"OGG"})),
    ("MP3", re.compile(rb"ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]"), frozenset({"MP3"})),
    ("AAC", re.compile(rb"\xff[\xf0\xf1\xf8\xf9]"), "aac"),
    ("MP4", re.compile(rb".{4}(ftyp|moov|mdat|wide|free|skip)", re.DOTALL), "mov"),
    ("MKV", re.compile(rb"\x1aE\xdf\xa3"), "matroska"),
)
_READ = "WAV, FLAC, Ogg, MP3, AAC, M4A, MP4, MKV or WebM"
_UNKNOWN_FRAMES = 2**63 - 1  # what libsndfile says


def load_audio(
    source: Any,
    sampling_rate: int,
    max_seconds: float,
    formats: Collection[str] = MEDIA_FORMATS,
    pool: MediaPool | None = None,
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return one audio item as mono samples at `sampling_rate`.

    Args:
        source: encoded bytes (WAV, FLAC, Ogg Vorbis or Opus, MP3, AAC; M4A, MP4, MOV, MKV or WebM, of which the first
            audio track is read); the path of a regular file; `(samples, rate)`, with
            samples a numpy array, torch tensor or list of floats, `[n]`, or `[channels, n]` or `[n, channels]` (the
            shorter side is the channels); a bare array or tensor `[n]`, taken to be at `sampling_rate` already.
        sampling_rate: samples per second of the result.
        max_seconds: longer audio is refused, as soon as its length is known.
        formats: file formats that are accepted.
        pool: decodes files; None to decode them in this process.

    Returns:
        `[num_samples]`, at least one, finite. Memory of its own.

    Raises:
        MediaTooLargeError: longer than allowed.
        MediaError: no such file, no audio, broken, truncated, empty, or samples that are not finite or too large.
        MediaTimeoutError: the pool's time is up.
    """
    if isinstance(source, tuple) and len(source) == 2:
        return _from_samples(*source, sampling_rate, max_seconds)
    if is_array(source) or is_tensor(source):
        if source.ndim != 1:
            raise MediaError(
                f"samples of shape {tuple(source.shape)}: give (samples, rate) if it has several channels, a list if "
                "these are several items (precomputed embeddings go under 'audio_embeds')",
                got=tuple(source.shape),
            )
        return _from_samples(source, sampling_rate, sampling_rate, max_seconds)
    if isinstance(source, (str, os.PathLike)):
        source = read_file(source)
    if isinstance(source, (bytes, bytearray, memoryview)):
        if pool is not None:
            return pooled_audio(pool, source, name_of(source), sampling_rate, max_seconds, formats)
        return decode_audio(bytes(source), name_of(source), sampling_rate, max_seconds, formats)
    raise MediaError(
        f"{type(source).__name__} is not audio; give a path, bytes, (samples, rate), or an array at the model's rate",
        got=type(source).__name__,
    )


# --- encoded audio ----------------------------------------------------------------------------------------------------


def decode_audio(
    data: bytes, name: str, sampling_rate: int, max_seconds: float, formats: Collection[str]
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the samples of a file in memory; arguments and errors as of `load_audio`.

    Args:
        data: the whole file.
        name: of the file, for messages.
    """
    if not data:
        raise MediaError(f"{name} is empty (0 bytes)")
    known = next((entry for entry in _FORMATS if entry[1].match(data)), None)
    if known is None:
        raise MediaError(f"{name} is not {_READ} audio")
    format_name, _, taken_for = known
    check_format(format_name.lower(), name, formats)
    if isinstance(taken_for, str):
        return _decode_stream(data, taken_for, name, sampling_rate, max_seconds)
    return _decode_file(data, format_name, taken_for, name, sampling_rate, max_seconds)


def _decode_file(
    data: bytes, format_name: str, taken_for: frozenset[str], name: str, sampling_rate: int, max_seconds: float
) -> np.ndarray[Any, Any]:
    """Decode with libsndfile."""
    import soundfile

    if format_name in ("WAV", "Ogg"):
        (check_wav if format_name == "WAV" else check_ogg)(BytesIO(data), name)
    is_guess = format_name == "MP3" and not states_mp3_length(data)
    stream = BytesIO(data)
    try:
        with soundfile.SoundFile(stream) as reader:
            if reader.format not in taken_for:
                raise MediaError(f"{name} is not {_READ} audio, but {reader.format}")
            _check_rate(reader.samplerate)
            _check_channels(reader.channels)
            reader.seekable = lambda: False  # else it seeks after every block, and the MP3 decoder starts over
            blocks = _mono_blocks(reader, name, format_name, max_seconds, is_guess=is_guess)
            samples = _to_rate(blocks, reader.samplerate, sampling_rate)
    except soundfile.SoundFileError as error:  # its texts hold addresses
        raise MediaError(f"{name}: broken or truncated {format_name}") from error
    if format_name == "MP3":
        check_mp3_end(stream.read(), len(samples) / sampling_rate, name)
    return samples


def _decode_stream(
    data: bytes, container: str, name: str, sampling_rate: int, max_seconds: float
) -> np.ndarray[Any, Any]:
    """Decode with FFmpeg."""
    from corellm_media.audio_streams import stream_blocks

    with closing(stream_blocks(data, container, name)) as blocks:
        rate, first = next(blocks)
        _check_rate(rate)
        return _to_rate(_mono_stream(chain([(rate, first)], blocks), name, max_seconds), rate, sampling_rate)


def _mono_stream(
    blocks: Iterable[tuple[int, np.ndarray[Any, Any]]], name: str, max_seconds: float
) -> Iterator[np.ndarray[Any, Any]]:
    """Yield mono blocks `[n]` of blocks `[channels, n]`; refuse more samples than allowed."""
    decoded, first_rate = 0, None
    for rate, block in blocks:
        first_rate = first_rate or rate
        if rate != first_rate:
            raise MediaError(f"{name} changes its sampling rate from {first_rate} to {rate} Hz part way through")
        _check_channels(len(block))
        decoded += block.shape[1]
        _check_length(decoded, len(block), rate, max_seconds)
        yield _to_mono(_to_float32(block))


def _mono_blocks(
    reader: Any, name: str, format_name: str, max_seconds: float, *, is_guess: bool
) -> Iterator[np.ndarray[Any, Any]]:
    """Decode `[n]` samples at a time, and compare their number at the end with what was announced, or only guessed."""
    announced, channels, rate = reader.frames, reader.channels, reader.samplerate
    states_length = announced != _UNKNOWN_FRAMES and not is_guess
    if states_length:
        _check_length(announced, channels, rate, max_seconds)
    decoded = 0
    while decoded < announced:  # not beyond the end: the FLAC decoder fails at tags there
        block = reader.read(min(_BLOCK_FRAMES, announced - decoded), dtype="float32", always_2d=True)
        if not len(block):
            break
        decoded += len(block)
        _check_length(decoded, channels, rate, max_seconds)
        yield _to_mono(block.T)
    if states_length and decoded < announced:
        raise MediaError(
            f"{name}: only {decoded / rate:.2f} of {announced / rate:.2f} seconds can be decoded: a broken or "
            f"truncated {format_name}",
            expected=announced, got=decoded,
        )  # fmt: skip


def _check_rate(rate: float) -> None:
    if not MIN_RATE <= rate <= MAX_RATE:
        raise MediaError(f"a sampling rate of {rate:g} Hz; accepted: {MIN_RATE} to {MAX_RATE}", got=rate)


def _check_channels(channels: int) -> None:
    if channels > MAX_CHANNELS:
        raise MediaError(
            f"{channels} channels, more than the {MAX_CHANNELS} allowed", expected=MAX_CHANNELS, got=channels
        )


def _check_length(frames: int, channels: int, rate: float, max_seconds: float) -> None:
    """Refuse a number of samples per channel, announced or decoded so far."""
    seconds, samples, most = frames / rate, frames * channels, int(max_seconds * _SAMPLES_PER_SECOND)
    if seconds > max_seconds:
        raise MediaTooLargeError(
            f"{seconds:.1f} seconds or more, longer than the {max_seconds:g} allowed; cut it, or raise "
            "max_audio_seconds",
            expected=max_seconds, got=seconds,
        )  # fmt: skip
    if samples > most:
        raise MediaTooLargeError(f"{samples} samples, more than the {most} allowed", expected=most, got=samples)


# --- samples ----------------------------------------------------------------------------------------------------------


def _from_samples(samples: Any, rate: Any, sampling_rate: int, max_seconds: float) -> np.ndarray[Any, Any]:
    if isinstance(rate, bool) or not isinstance(rate, (int, float, np.integer, np.floating)):
        raise MediaError(f"(samples, rate): the rate must be a number of hertz, got {type(rate).__name__}")
    try:
        rate = float(rate)
    except OverflowError:
        rate = math.inf
    _check_rate(rate)
    array = _array_of(samples)
    if array.ndim == 2:
        array = array.T if array.shape[0] > array.shape[1] else array  # [channels, n]
        _check_channels(len(array))
    elif array.ndim != 1:
        raise MediaError(
            f"samples of shape {array.shape}; give [n], [channels, n] or [n, channels]", got=tuple(array.shape)
        )
    _check_length(array.shape[-1], 1 if array.ndim == 1 else len(array), rate, max_seconds)
    values = _to_float32(array)
    return _to_rate([_to_mono(values)] if values.size else [], rate, sampling_rate)


def _array_of(samples: Any) -> np.ndarray[Any, Any]:
    if is_array(samples):
        return samples
    if is_tensor(samples):
        if str(samples.layout) != "torch.strided" or samples.is_quantized or samples.device.type == "meta":
            raise MediaError("samples must be a dense tensor that holds values")
        tensor = samples.detach().cpu()
        return np.asarray(tensor.float() if tensor.is_floating_point() else tensor)  # numpy has no bfloat16
    if isinstance(samples, (list, tuple)):
        try:
            return np.array(samples)
        except ValueError:
            raise MediaError("(samples, rate): the list of samples is neither flat nor one list per channel") from None
    raise MediaError(
        f"(samples, rate): samples must be an array, a tensor or a list of floats, got {type(samples).__name__}"
    )


def _to_float32(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a copy scaled to about -1 to 1."""
    kind, itemsize = array.dtype.kind, array.dtype.itemsize
    if kind == "f":
        with np.errstate(over="ignore"):  # becomes infinite, which is refused below
            return array.astype(np.float32)
    if kind == "i" and itemsize in (2, 4):
        return array.astype(np.float32) / np.float32(2 ** (8 * itemsize - 1))
    if kind == "u" and itemsize == 1:
        return (array.astype(np.float32) - 128) / 128
    raise MediaError(
        f"samples of dtype {array.dtype}; give floats from -1 to 1, or PCM as int16, int32 or uint8",
        got=str(array.dtype),
    )


def _to_mono(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`[channels, n]` (or `[n]`) to `[n]`."""
    if len(values) == 1:
        return values.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused later
        mono: np.ndarray[Any, Any] = values if values.ndim == 1 else values.mean(axis=0)
        return mono


def _to_rate(blocks: Iterable[np.ndarray[Any, Any]], rate: float, sampling_rate: int) -> np.ndarray[Any, Any]:
    """Return mono blocks resampled and joined; refuse values that are not finite.

    The length is `ceil(samples * sampling_rate / rate)`; soxr rounds, and the last sample may be missing.
    """
    stream = None
    if rate != sampling_rate:
        import soxr

        stream = soxr.ResampleStream(rate, sampling_rate, 1, dtype="float32", quality="soxr_hq")
    num_samples = 0
    out = []
    for block in blocks:
        _check_values(block)
        num_samples += len(block)
        out.append(block if stream is None else stream.resample_chunk(np.ascontiguousarray(block)))
    if not num_samples:
        raise MediaError("the audio is empty (0 samples)")
    if stream is None:
        return np.concatenate(out)
    out.append(stream.resample_chunk(np.zeros(0, np.float32), last=True))
    resampled = np.zeros(math.ceil(num_samples * (float(sampling_rate) / rate)), np.float32)
    joined = np.concatenate(out)[: len(resampled)]
    resampled[: len(joined)] = joined
    return resampled


def _check_values(block: np.ndarray[Any, Any]) -> None:
    loudest = float(np.maximum(block.max(initial=0), -block.min(initial=0)))  # NaN if there is one
    if not math.isfinite(loudest):
        raise MediaError("samples that are not finite (NaN or infinity)")
    if loudest > _LOUDEST:
        raise MediaError(
            f"floating-point samples up to {loudest:g}, expected about -1 to 1; give PCM as int16, int32 or uint8",
            expected=(-1, 1), got=loudest,
        )  # fmt: skip
