"""Times of the frames of one stream, from its packets. Numbers only; knows no files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from corellm_media.video.index import FrameIndex, PacketInfo

_RATE_TOLERANCE = 0.01
_MAX_REORDERED = 16
"""Most frames that any codec decodes before one that is shown earlier."""
_USUAL_RATE = 24
"""Frames per second if the file states none, as transformers assumes."""


@dataclass(frozen=True)
class Timeline:
    """The packets of one stream, in the order they are decoded."""

    packets: Sequence[PacketInfo]
    decoded_at: Sequence[int]
    """Ticks, one per packet."""
    last_duration: int
    """Ticks that the last frame is shown; 0 if not known."""
    stated_duration: int
    """Ticks of the whole by the header; 0 if not known."""
    tick: Fraction
    """Seconds."""
    nominal_rate: float
    """Frames per second by the container; 0 if not known."""
    intra_only: bool
    """Whether every frame can be decoded alone."""

    def stands_still(self) -> bool:
        """Whether all frames have one decoding time: the file states 0 frames a second."""
        return len(self.packets) > 1 and min(self.decoded_at) == max(self.decoded_at)

    def evenly(self) -> Timeline:
        """The same packets at equal intervals: over the stated duration, else at the usual rate."""
        count = len(self.packets)
        duration = self.stated_duration * self.tick or Fraction(count, _USUAL_RATE)
        return replace(
            self,
            decoded_at=range(count),
            tick=duration / count,
            last_duration=1,
            nominal_rate=float(count / duration),
        )

    def index(self) -> FrameIndex:
        """The frames by the times of their packets."""
        return FrameIndex(self.packets)

    def index_in_order(self) -> FrameIndex:
        """The frames by number: one per packet, in the order they are shown.

        Which packet holds a frame is known only without reordering; else decoding begins at the start and continues
        until the decoder must have returned the frame.
        """
        numbered = [PacketInfo(n, packet.is_key, self.intra_only, True) for n, packet in enumerate(self.packets)]
        return FrameIndex(numbered, lookahead=0 if self.intra_only else _MAX_REORDERED)

    def times(self, index: FrameIndex, *, by_number: bool) -> tuple[float, ...]:
        """When each frame is shown, seconds from the first."""
        ticks = [self.decoded_at[number] for number in index.pts] if by_number else index.pts
        return tuple(float((tick - ticks[0]) * self.tick.numerator / self.tick.denominator) for tick in ticks)

    def duration_and_rate(self, times: Sequence[float]) -> tuple[float | None, float | None]:
        """Duration in seconds and frames per second, from the frames' times and the container.

        Some containers round times, Matroska to milliseconds, but not the rate.
        """
        last = self.last_duration * float(self.tick)
        duration = times[-1] + (last or times[-1] / max(1, len(times) - 1))
        if duration <= 0:
            return None, None
        measured = len(times) / duration
        nominal = self.nominal_rate
        return duration, nominal if abs(measured - nominal) < _RATE_TOLERANCE * measured else measured
