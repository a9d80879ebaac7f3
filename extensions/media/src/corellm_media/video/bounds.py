"""How much one video may take: pixels of a frame, pixels of all that is decoded, frames. Knows no formats.

Forty kilobytes can hold six hundred frames of a still 4K image.
"""

from __future__ import annotations

from dataclasses import dataclass

from corellm.errors import MediaTooLargeError

MAX_PACKETS = 1_000_000
"""Frames of a file, shown or not: four and a half hours at 60 per second."""


def check_packets(count: int) -> None:
    """Raise `MediaTooLargeError` for a file of more than `MAX_PACKETS` frames, or outer parts."""
    if count > MAX_PACKETS:
        raise MediaTooLargeError(f"has more than {MAX_PACKETS} frames or parts", expected=MAX_PACKETS, got=count)


def check_size(width: int, height: int, max_pixels: int) -> None:
    """Raise `MediaTooLargeError` for frames of more than `max_pixels`."""
    if width * height > max_pixels:
        raise MediaTooLargeError(
            f"has frames of {width} x {height} = {width * height} pixels, more than the {max_pixels} allowed",
            expected=max_pixels,
            got=width * height,
        )


@dataclass
class PixelBudget:
    """Pixels that one reading may decode, including frames decoded only because others refer to them."""

    max_pixels: int
    spent: int = 0

    def check(self, ahead: int) -> None:
        """Raise `MediaTooLargeError` if `ahead` more pixels exceed the budget."""
        if self.spent + ahead > self.max_pixels:
            raise MediaTooLargeError(
                f"takes {self.spent + ahead} pixels of decoding to reach the frames wanted, more than the "
                f"{self.max_pixels} allowed; give a shorter or smaller one, or raise max_video_decoded_pixels",
                expected=self.max_pixels,
                got=self.spent + ahead,
            )

    def spend(self, pixels: int) -> None:
        """Count what is decoded next; raises as `check` does."""
        self.check(pixels)
        self.spent += pixels
