"""Whether an audio file is whole, by the lengths that its container states.

Decoders stop early without an error: at the cut of a truncated WAV, after the first of several joined Ogg or MP3
files, at a length guessed from the first frame of an MP3 without an index. Here the containers' own lengths are
compared with the file. Knows headers only: nothing is decoded, no library is needed.

FLAC needs none of this: its decoder checks the stated length and every frame.
"""

from __future__ import annotations

import os
import zlib
from typing import BinaryIO

from corellm.errors import MediaError

_MAX_PARTS = 500_000
"""Most chunks, pages or frames of one file: ten minutes of MP3 have 25 thousand frames."""

_UNKNOWN_WAV_SIZE = 0x7FFF0000
"""Programs that write WAV to a pipe do not know its size: they state 0xFFFFFFFF, or a little less than 2 GiB."""

_BITS_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))

_MP3_KBITS = (  # by the header's four bits; layer III
    (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),  # MPEG-1
    (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),  # MPEG-2 and 2.5
)
_MP3_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}  # by the version's two bits
_MP3_SEARCH_BYTES = 1 << 16
_MP3_CODEC_FRAMES = 5
"""Frames' worth of samples that the codec itself adds at both ends, and decoders leave out."""


def check_wav(stream: BinaryIO, name: str) -> None:
    """Check that the whole data chunk is there.

    Raises:
        MediaError: the file ends before its data do.
    """
    end = stream.seek(0, os.SEEK_END)
    position = 12
    for _ in range(_MAX_PARTS):
        if position + 8 > end:
            return
        stream.seek(position)
        chunk, size = stream.read(4), int.from_bytes(stream.read(4), "little")
        position += 8
        if chunk == b"data":
            if position + size > end and size < _UNKNOWN_WAV_SIZE:
                raise MediaError(
                    f"{name}: truncated WAV: it announces {size} bytes of samples, {end - position} are there",
                    expected=size, got=end - position,
                )  # fmt: skip
            return
        position += size + size % 2
    raise _too_many_parts(name)


def check_ogg(stream: BinaryIO, name: str) -> None:
    """Check that all pages are whole and of one stream; the decoder skips broken ones.

    A stream that ends after a page without the end mark is accepted: some recorders never write it.

    Raises:
        MediaError: a page is broken, the file ends inside one, or a second stream follows the first.
    """
    position, begun = 0, False
    for _ in range(_MAX_PARTS):
        stream.seek(position)
        header = stream.read(27)
        if not header or not b"OggS".startswith(header[:4]):
            return  # the end, or other data after the audio
        lacing = stream.read(header[26]) if len(header) == 27 else b""
        body = stream.read(sum(lacing))
        position += 27 + len(lacing) + len(body)
        if len(header) < 27 or len(lacing) < header[26] or len(body) < sum(lacing):
            raise MediaError(f"{name}: truncated Ogg: it ends inside a page")
        checksum = int.from_bytes(header[22:26], "little")
        if checksum != _ogg_checksum(header[:22] + bytes(4) + header[26:] + lacing + body):
            raise MediaError(f"{name}: broken Ogg: a page whose checksum is wrong")
        first_of_a_stream = bool(header[5] & 2)
        if first_of_a_stream and begun:
            raise MediaError(f"{name}: several Ogg files joined end to end; give each on its own")
        begun = not first_of_a_stream
    raise _too_many_parts(name)


def _ogg_checksum(page: bytes) -> int:
    """CRC-32 with zlib's polynomial, but highest bit first and without its inversions (RFC 3533, section 6)."""
    reflected = zlib.crc32(page.translate(_BITS_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int.from_bytes(reflected.to_bytes(4, "little").translate(_BITS_REVERSED), "big")


def count_mp3_samples(stream: BinaryIO, name: str) -> int:
    """Least number of samples per channel that an MP3 decodes to, by counting its frames.

    The count ends where no frame follows: at the file's tags, or where it is damaged.

    Raises:
        MediaError: there are fewer frames than the index announces, or more.
    """
    position = first = _first_mp3_frame(stream)
    end = stream.seek(0, os.SEEK_END)
    samples = frames = 0
    announced: int | None = None
    while frame := _mp3_frame(stream, position):
        if frames > _MAX_PARTS:
            raise _too_many_parts(name)
        if position == first:
            announced = _announced_mp3_frames(stream, position, frame[1])
        position += frame[0]
        if position > end:
            break
        frames += 1
        samples += frame[1]
    if announced is None:
        return max(0, samples - _MP3_CODEC_FRAMES * 1152)
    frames -= 1  # the one that holds the index; some programs count it
    if position > end or frames < announced - 1:
        raise MediaError(
            f"{name}: broken or truncated MP3: of {announced} frames {frames} are there", expected=announced, got=frames
        )
    if frames > announced + 1:
        raise MediaError(
            f"{name}: several MP3 files joined end to end (the first has {announced} frames, the file {frames}); "
            "give each on its own, or encode them together",
            expected=announced, got=frames,
        )  # fmt: skip
    return max(0, samples - (_MP3_CODEC_FRAMES + 1) * 1152)


def _first_mp3_frame(stream: BinaryIO) -> int:
    """Position of the first frame after any ID3v2 tags; the end of the tags if no frame is near."""
    position = 0
    for _ in range(16):
        stream.seek(position)
        header = stream.read(10)
        if header[:3] != b"ID3" or len(header) < 10:
            break
        size = 0
        for byte in header[6:10]:
            size = size << 7 | byte & 0x7F
        position += 10 + size
    stream.seek(position)
    window = stream.read(_MP3_SEARCH_BYTES)
    offset = window.find(b"\xff")
    while offset >= 0:
        frame = _mp3_frame(stream, position + offset)
        if frame and _mp3_frame(stream, position + offset + frame[0]):
            return position + offset
        offset = window.find(b"\xff", offset + 1)
    return position


def _mp3_frame(stream: BinaryIO, position: int) -> tuple[int, int] | None:
    """`(bytes, samples per channel)` of the frame that begins at `position`; None if none of layer III does."""
    stream.seek(position)
    header = stream.read(4)
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE6 != 0xE2:
        return None
    rates = _MP3_RATES.get(header[1] >> 3 & 3)
    bitrate, rate = header[2] >> 4, header[2] >> 2 & 3
    if rates is None or bitrate in (0, 15) or rate == 3:
        return None
    is_mpeg2 = rates is not _MP3_RATES[3]
    samples = 576 if is_mpeg2 else 1152
    return samples // 8 * 1000 * _MP3_KBITS[is_mpeg2][bitrate - 1] // rates[rate] + (header[2] >> 1 & 1), samples


def _announced_mp3_frames(stream: BinaryIO, position: int, samples: int) -> int | None:
    """Number of frames by the Xing or Info index, which the first frame may hold; None without one."""
    stream.seek(position + 3)
    is_mono = stream.read(1)[0] >> 6 == 3
    side_information = (9 if is_mono else 17) if samples == 576 else (17 if is_mono else 32)
    stream.seek(position + 4 + side_information)
    tag = stream.read(12)
    if tag[:4] in (b"Xing", b"Info") and len(tag) == 12 and tag[7] & 1:
        return int.from_bytes(tag[8:], "big")
    return None


def _too_many_parts(name: str) -> MediaError:
    return MediaError(f"{name}: cut into more than {_MAX_PARTS} parts: not audio that any program writes")
