"""Which packets of a stream are frames, when each is shown, and where decoding can begin: numbers only.

Packets are numbered in the container's order, which is the decoding order; frames in the order they are shown. Knows
neither files nor codecs (`container`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from corellm.errors import MediaError


@dataclass(frozen=True, slots=True)
class PacketInfo:
    """What the index knows about one packet."""

    pts: int
    """When its frame is shown, in ticks."""
    is_key: bool
    """Whether the container flags it as a key frame."""
    is_entry: bool
    """Whether a decoder can certainly begin with it: no frame shown after it needs anything before it.
    """
    is_shown: bool
    """Neither removed by an edit list nor only a reference image."""


@dataclass
class Stretch:
    """Packets to decode in one go, and the frames wanted of them (ascending)."""

    first: int
    last: int
    frames: list[int]
    must_begin_at: int | None
    """The pts that the first decoded frame must have, else decoding cannot begin here; None at the start of the stream.
    """

    @property
    def num_packets(self) -> int:
        """Number of packets to decode."""
        return self.last + 1 - self.first


class FrameIndex:
    """The frames of one stream.

    Packets before the first key frame, and those after it that are shown before it, refer to images that are not in
    the file and are no frames. Frames shown at the same time count as one.

    Attributes:
        pts: when each frame is shown, ascending.
        packets: the packet of each frame, or the last one to decode for it.

    Args:
        stream: its packets.
        lookahead: packets to decode after a frame's own, where frames are numbered by decoder output.

    Raises:
        MediaError: there are no frames.
    """

    def __init__(self, stream: Sequence[PacketInfo], lookahead: int = 0) -> None:
        start = next((n for n, packet in enumerate(stream) if packet.is_key), len(stream))
        shown: dict[int, int] = {}
        entries: list[tuple[int, int]] = []  # (pts, packet), both ascending
        latest = None
        for number in range(start, len(stream)):
            packet = stream[number]
            if latest is None or (packet.is_entry and packet.is_shown and packet.pts > latest):
                entries.append((packet.pts, number))
            latest = packet.pts if latest is None else max(latest, packet.pts)
            if packet.is_shown and packet.pts >= stream[start].pts:
                shown[packet.pts] = number
        if not shown:
            raise MediaError("has no frames")
        self.pts = tuple(sorted(shown))
        self.packets = tuple(min(shown[pts] + lookahead, len(stream) - 1) for pts in self.pts)
        self._entry_pts = [pts for pts, _ in entries]
        self._entry_packets = [packet for _, packet in entries]

    def __len__(self) -> int:
        return len(self.pts)

    def stretches(self, frames: Sequence[int]) -> list[Stretch]:
        """The packets to decode for `frames` (ascending), in order and without overlap."""
        found: list[Stretch] = []
        for frame in frames:
            # The first entry may be removed by an edit list, with any pts.
            number = max(0, bisect_right(self._entry_pts, self.pts[frame]) - 1)
            first = self._entry_packets[number]
            if found and first <= found[-1].last + 1:
                found[-1].last = max(found[-1].last, self.packets[frame])
                found[-1].frames.append(frame)
            else:
                begin = self._entry_pts[number] if number else None
                found.append(Stretch(first, self.packets[frame], [frame], begin))
        return found

    def from_the_start(self, frames: Sequence[int]) -> list[Stretch]:
        """The packets to decode for `frames` from the first entry on."""
        return [Stretch(self._entry_packets[0], max(self.packets[frame] for frame in frames), list(frames), None)]
