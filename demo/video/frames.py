"""Frames of a video as the model takes them: sampled, resized and split into patches.

The same operations, on uint8 frames, as Transformers' `Qwen2VLVideoProcessor`: its sampling by frames per second,
`smart_resize`, the resizing of torchvision, and the order of its patches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from demo.video.model import FRAMES, FRAMES_PER_PATCH, MAX_PIXELS, MERGE, MIN_PIXELS, PATCH
from demo.video.moving_shapes import Frames

CELL = PATCH * MERGE


def sampled(total: int) -> list[int]:
    """Return the frames the processor samples of `total`, at least two: FRAMES, or of fewer the largest even number."""
    count = min(FRAMES, total) // FRAMES_PER_PATCH * FRAMES_PER_PATCH
    return [int(k) for k in torch.arange(0, total, total / count).int()[:count]]


def resize(frames: Frames) -> Frames:
    """Return the frames at the size the processor gives them."""
    height, width = smart_resize(*frames.shape[1:3], factor=CELL, min_pixels=MIN_PIXELS, max_pixels=MAX_PIXELS)
    if (height, width) == frames.shape[1:3]:
        return frames
    pixels = torch.from_numpy(frames).permute(0, 3, 1, 2).contiguous()  # uint8: floats would be rounded differently
    small = functional.interpolate(pixels, (height, width), mode="bicubic", antialias=True)
    return np.ascontiguousarray(small.permute(0, 2, 3, 1).numpy())


def patches(frames: Frames) -> NDArray[np.uint8]:
    """Return the patches of each pair of frames; those of each MERGE x MERGE cell are adjacent.

    Shapes: [num_frames, height, width, 3] -> [num_pairs, patches of a pair, 3 * FRAMES_PER_PATCH * PATCH * PATCH]
    """
    count, height, width, _ = frames.shape
    pairs, rows, columns = count // FRAMES_PER_PATCH, height // CELL, width // CELL
    split: NDArray[Any] = frames.reshape(pairs, FRAMES_PER_PATCH, rows, MERGE, PATCH, columns, MERGE, PATCH, 3)
    return split.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(pairs, rows * columns * MERGE * MERGE, -1)


def patch_index(row: int, column: int, columns: int) -> int:
    """Return the index of a patch within its pair of frames, for a grid `columns` patches wide."""
    cell = row // MERGE * (columns // MERGE) + column // MERGE
    return (cell * MERGE + row % MERGE) * MERGE + column % MERGE
