"""Audio that only FFmpeg (PyAV) decodes: AAC, and audio tracks of MP4, M4A, MOV, MKV and WebM.

Knows decoders; `containers` opens a file as the one format its signature says, `audio` limits the length and converts
the samples. The first audio track is read, video is skipped. Silence that the encoder added is left out where the
container states it, as players do.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import av
import numpy as np

from corellm.errors import MediaError
from corellm_media.containers import open_container
from corellm_media.video.bounds import check_packets
from corellm_media.video.integrity import BROKEN, check_whole

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.packet import Packet

DECODERS = ("aac", "alac", "flac", "mp3float", "opus", "vorbis")
"""FFmpeg's names."""

_TAGS = (b"TAG", b"APETAGEX")  # tags that may follow the last frame of AAC
_MAX_FRAME_SAMPLES = 1 << 16


def stream_blocks(data: bytes, container: str, name: str) -> Generator[tuple[int, np.ndarray[Any, Any]]]:
    """Decode a file frame by frame; yields at least one block.

    Args:
        data: the whole file.
        container: "aac", "mov" or "matroska": FFmpeg's name.
        name: of the file, for messages.

    Yields:
        `(samples per second, samples [channels, n])`, as integers or floats.

    Raises:
        MediaTooLargeError: it announces more frames or parts than `video.bounds` allows.
        MediaError: broken, truncated, without audio, or of a codec that is not supported.
    """
    empty = True
    try:
        for frame in _frames(data, container):
            empty = False
            yield frame.sample_rate, _samples(frame)
        if empty:
            raise MediaError("has no samples")
    except av.FFmpegError as error:
        raise MediaError(f"{name} {BROKEN}") from error
    except MediaError as error:
        error.args = (f"{name} {error}",)
        raise


def _frames(data: bytes, container: str) -> Iterator[AudioFrame]:
    if container != "aac":
        check_whole(data, container)
    with open_container(data, container) as opened:
        stream = _audio_stream(opened)
        decoder = stream.codec_context
        decoder.options = {"codec_whitelist": ",".join(DECODERS), "max_samples": str(_MAX_FRAME_SAMPLES)}
        for packet in _whole_packets(opened, stream, data, container):
            yield from packet.decode()


def _audio_stream(container: InputContainer) -> AudioStream:
    for stream in container.streams:
        if stream.type != "audio" or stream is not container.streams.audio[0]:
            stream.discard = av.stream.Discard.all
    if not container.streams.audio:
        raise MediaError("has no audio")
    stream = container.streams.audio[0]
    if stream.codec_context is None or stream.codec_context.name not in DECODERS:
        raise MediaError(f"has an audio codec that is not supported; supported: {', '.join(DECODERS)}")
    return stream


def _whole_packets(
    container: InputContainer, stream: AudioStream, data: bytes, container_name: str
) -> Iterator[Packet[AudioStream]]:
    """Yield all packets, and the empty one at the end that flushes the decoder.

    Raises:
        MediaTooLargeError: too many of them.
        MediaError: one is cut short, or some are missing.
    """
    number = 0
    end: int | None = None
    for packet in container.demux(stream):
        number += bool(packet.size)
        check_packets(number)
        if packet.is_corrupt:
            raise MediaError(BROKEN)
        if container_name == "aac" and packet.size:
            if end is not None and packet.pos != end:
                raise MediaError(BROKEN)  # the demuxer skipped bytes to the next whole frame
            end = (packet.pos or 0) + packet.size
        yield packet
    missing = container_name == "mov" and number < len(stream.index_entries)
    if missing or (end is not None and end < len(data) and not data.startswith(_TAGS, end)):
        raise MediaError(BROKEN)


def _samples(frame: AudioFrame) -> np.ndarray[Any, Any]:
    """Samples `[channels, n]` in the decoder's dtype."""
    samples = frame.to_ndarray()
    if not frame.format.is_planar:
        samples = samples.reshape(-1, frame.layout.nb_channels).T
    return samples
