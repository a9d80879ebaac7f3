"""What the first bytes of a packet say about it, and which codecs are decoded. Nothing is decoded here."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.stream import VideoStream

DECODERS = (
    "ffv1", "h264", "hevc", "libdav1d", "mjpeg", "mpeg1video", "mpeg2video", "mpeg4", "prores", "vp8", "vp9",
)  # fmt: skip
"""FFmpeg's names."""

_ENTRY_AS_FLAGGED = frozenset({"libdav1d", "mjpeg", "mpeg1video", "mpeg2video", "mpeg4", "prores", "vp9"})
"""Codecs whose key frames need nothing before them, and whose decoders notice a frame that is called one wrongly."""

INTRA_ONLY = frozenset({"mjpeg", "prores"})
"""Codecs whose frames need no others, and come out of the decoder in the order they went in."""

STRICT = frozenset({"ffv1", "mjpeg"})
"""Decoders that tell of a frame they could not finish only if asked to stop at errors. The others flag it; they are not
asked, as a stream cut out of a longer one may refer to what is gone, and be shown correctly all the same.
"""

# NAL unit types; where in the decoder's configuration the two bits are that say how long a unit's length is.
_H264_SLICES, _H264_ENTRIES, _AVCC_LENGTH = range(1, 6), range(5, 6), 4
_HEVC_SLICES, _HEVC_ENTRIES, _HVCC_LENGTH = range(32), range(16, 22), 21
_MAX_UNITS = 32  # looked at, before the first slice


def is_shown(codec: str, packet: Packet[VideoStream]) -> bool:
    """Whether a frame comes of it: VP8 has packets for images that only others refer to."""
    return codec != "vp8" or bool(bytes(packet)[0] & 0x10)


def is_entry(codec: str, packet: Packet[VideoStream], configuration: bytes) -> bool:
    """Whether no frame that is shown after this one needs anything before it.

    Args:
        codec: one of `DECODERS`.
        packet: flagged as a key frame by its container.
        configuration: of the decoder (`avcC`, `hvcC`), as the container has it.
    """
    if codec == "vp8":
        return not bytes(packet)[0] & 1
    if codec == "h264":  # an IDR image; from other key frames decoding may take a while to recover
        unit = _first_slice(bytes(packet), configuration, _AVCC_LENGTH, shift=0, mask=31, slices=_H264_SLICES)
        return unit in _H264_ENTRIES
    if codec == "hevc":
        unit = _first_slice(bytes(packet), configuration, _HVCC_LENGTH, shift=1, mask=63, slices=_HEVC_SLICES)
        return unit in _HEVC_ENTRIES
    return codec in _ENTRY_AS_FLAGGED


def _first_slice(
    data: bytes, configuration: bytes, place: int, *, shift: int, mask: int, slices: Container[int]
) -> int | None:
    """The NAL unit type of the first slice of an image; None if there is none, or units have no lengths."""
    if len(configuration) <= place or configuration[0] != 1:
        return None
    width = (configuration[place] & 3) + 1
    at = 0
    for _ in range(_MAX_UNITS):
        if at + width >= len(data):
            return None
        unit = data[at + width] >> shift & mask
        if unit in slices:
            return unit
        at += width + int.from_bytes(data[at : at + width], "big")
    return None
