"""What the first bytes of a packet tell about it, and which codecs are supported. Nothing is decoded here."""

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
"""Codecs whose key frames need nothing before them, and whose decoders detect a frame wrongly flagged as one."""

INTRA_ONLY = frozenset({"mjpeg", "prores"})
"""Codecs whose frames need no others, and leave the decoder in the order they entered."""

STRICT = frozenset({"ffv1", "mjpeg"})
"""Decoders that report an incomplete frame only when told to stop at errors. The others flag it and are not told to:
a stream cut out of a longer one may refer to missing frames and still decode correctly.
"""

# NAL unit types; index of the configuration byte with the size of a unit's length field.
_H264_SLICES, _H264_ENTRIES, _AVCC_LENGTH = range(1, 6), range(5, 6), 4
_HEVC_SLICES, _HEVC_ENTRIES, _HVCC_LENGTH = range(32), range(16, 22), 21
_MAX_UNITS = 32  # before the first slice


def is_shown(codec: str, packet: Packet[VideoStream]) -> bool:
    """Whether the packet gives a frame: VP8 has packets for images that only others refer to."""
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
    if codec == "h264":  # an IDR image; after other key frames a decoder may need several frames to recover
        unit = _first_slice(bytes(packet), configuration, _AVCC_LENGTH, shift=0, mask=31, slices=_H264_SLICES)
        return unit in _H264_ENTRIES
    if codec == "hevc":
        unit = _first_slice(bytes(packet), configuration, _HVCC_LENGTH, shift=1, mask=63, slices=_HEVC_SLICES)
        return unit in _HEVC_ENTRIES
    return codec in _ENTRY_AS_FLAGGED


def _first_slice(
    data: bytes, configuration: bytes, place: int, *, shift: int, mask: int, slices: Container[int]
) -> int | None:
    """The NAL unit type of the first slice of an image; None if there is none, or units have no length fields."""
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
