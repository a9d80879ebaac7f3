"""From a clip to what the model takes: which frames, at which size, as which patches.

These are the operations of Transformers' `Qwen2VLVideoProcessor` that matter to training, on uint8 frames: its
sampling by frames per second, `smart_resize`, the resizing of torchvision, and the order of its patches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from demo.video.clips import Frames
from demo.video.model import FRAMES, FRAMES_PER_PATCH, MAX_PIXELS, MERGE, MIN_PIXELS, PATCH

CELL = PATCH * MERGE


def sampled(total: int) -> list[int]:
    """Which of `total` frames, at least two, the processor takes: FRAMES of them, or all but an odd one of fewer."""
    count = min(FRAMES, total) // FRAMES_PER_PATCH * FRAMES_PER_PATCH
    return [int(k) for k in torch.arange(0, total, total / count).int()[:count]]


def resize(frames: Frames) -> Frames:
    height, width = smart_resize(*frames.shape[1:3], factor=CELL, min_pixels=MIN_PIXELS, max_pixels=MAX_PIXELS)
    if (height, width) == frames.shape[1:3]:
        return frames
    pixels = torch.from_numpy(frames).permute(0, 3, 1, 2).contiguous()  # bytes, which are not resized as floats are
    small = functional.interpolate(pixels, (height, width), mode="bicubic", antialias=True)
    return np.ascontiguousarray(small.permute(0, 2, 3, 1).numpy())


def patches(frames: Frames) -> NDArray[np.uint8]:
    """[num_frames, height, width, 3] -> [num_pairs, patches of a pair, 3 * FRAMES_PER_PATCH * PATCH * PATCH]

    The patches of each MERGE x MERGE cell follow one another.
    """
    count, height, width, _ = frames.shape
    pairs, rows, columns = count // FRAMES_PER_PATCH, height // CELL, width // CELL
    split: NDArray[Any] = frames.reshape(pairs, FRAMES_PER_PATCH, rows, MERGE, PATCH, columns, MERGE, PATCH, 3)
    return split.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(pairs, rows * columns * MERGE * MERGE, -1)


def patch_index(row: int, column: int, columns: int) -> int:
    """Where the patch at this row and column of a grid `columns` patches wide comes among the patches of its pair."""
    cell = row // MERGE * (columns // MERGE) + column // MERGE
    return (cell * MERGE + row % MERGE) * MERGE + column % MERGE
