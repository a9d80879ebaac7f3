"""One image decoded by a child process of the pool against the same in this process: milliseconds, and how many more.

JPEGs of ordinary sizes, in bytes. Calls with and without the pool take turns. On a busy machine a call through the pool
also waits until another processor is free to wake the child: the fastest calls show what the pool costs by itself, the
medians what it costs there.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from collections.abc import Callable
from functools import partial

from PIL import Image
from sklearn.datasets import load_sample_images

from corellm.config import MultiModalConfig
from corellm.media.image import load_image
from corellm.media.pool import MediaPool

SIZES = ((640, 480), (1024, 1024))
MAX_PIXELS = 1 << 26


def milliseconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def main() -> None:
    """Print a line per size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=200, help="calls of each (default: %(default)s)")
    turns = parser.parse_args().turns
    pool = MediaPool.of(MultiModalConfig(media_workers=1))
    photograph = Image.fromarray(load_sample_images().images[0])
    print(f"{'':12} {'':>6} {'fastest':>26} {'median of ' + str(turns):>26}")
    print(f"{'size':>12} {'KB':>6} {'here':>8} {'pool':>8} {'more':>8} {'here':>8} {'pool':>8} {'more':>8}")
    for size in SIZES:
        buffer = io.BytesIO()
        photograph.resize(size).save(buffer, "JPEG", quality=90)
        decode = partial(load_image, buffer.getvalue(), MAX_PIXELS)
        pairs = [(milliseconds(decode), milliseconds(partial(decode, pool=pool))) for _ in range(turns + 10)][10:]
        row = f"{size[0]:>7}x{size[1]:<4} {len(buffer.getvalue()) // 1000:>6}"
        for pick in (min, statistics.median):
            here, there = (pick(column) for column in zip(*pairs, strict=True))
            row += f" {here:8.2f} {there:8.2f} {there - here:+8.2f}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
