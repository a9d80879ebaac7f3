"""Videos to patches, as transformers' `Qwen2VLVideoProcessor` and `Qwen3VLVideoProcessor`, but without torchvision.

Knows which frames of a video are taken, their size and how they are cut; knows no prompt. Frames are read and resized
one at a time, after all checks. Sampling, sizes, rounding and layout
follow transformers (`models/qwen2_vl/video_processing_qwen2_vl.py`, `models/qwen3_vl/...`); where this departs
from it, the plugin's README says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from corellm.errors import MediaError, MediaTooLargeError, ProcessorKwargsError, PromptTooLongError
from corellm_qwen_vl.settings import VideoSettings

if TYPE_CHECKING:
    from corellm.multimodal import Video

UNKNOWN_FPS = 24
"""Assumed rate of frames without one."""


def process_video(video: Video, settings: VideoSettings, max_tokens: int | None) -> dict[str, Any]:
    """Turn one video into the encoder's input.

    Args:
        video: the video.
        settings: the request's.
        max_tokens: a video that becomes more is refused before its frames are read; None for any number.

    Returns:
        `pixel_values_videos` `[t * h * w, 3 * temporal_patch_size * patch_size ** 2]`; `video_grid_thw` `[1, 3]`:
        patches `t, h, w`; `second_per_grid_ts` `[1]`: duration of a temporal patch; `video_timestamps` `[1, t]`: its
        time, both in seconds.

    Raises:
        PromptTooLongError, MediaTooLargeError: the video is too long or too large for these settings.
        ProcessorKwargsError: the video cannot be sampled as asked.
        MediaError: a frame cannot be decoded.
    """
    step, patch = settings.temporal_patch_size, settings.patch_size
    count, sampled = _count_frames(video, settings)
    height, width = frame_size(settings, count, video.metadata.height, video.metadata.width)
    grid = (-(-count // step), height // patch, width // patch)
    tokens = math.prod(grid) // settings.merge_size**2
    if max_tokens is not None and tokens > max_tokens:
        raise PromptTooLongError(
            f"the video's {count} frames of {width} x {height} pixels become {tokens} tokens, more than max_model_len="
            f"{max_tokens}; lower max_frames, fps or max_pixels (size for Qwen3-VL) in mm_processor_kwargs"
        )
    indices = _spread(video.metadata.total_num_frames, count, settings) if sampled else list(range(count))
    seconds = _seconds(video, indices)
    seconds += seconds[-1:] * (-len(seconds) % step)
    frames = (_resize(frame, height, width) for frame in video.read(indices))
    stamps = [(first + last) / 2 for first, last in zip(seconds[::step], seconds[step - 1 :: step], strict=True)]
    metadata = video.metadata
    fps = len(indices) / metadata.total_num_frames * metadata.fps if metadata.fps else UNKNOWN_FPS
    return {
        "pixel_values_videos": _patches(frames, grid, settings),
        "video_grid_thw": torch.tensor([grid]),
        "second_per_grid_ts": torch.tensor([step / fps]),
        "video_timestamps": torch.tensor([stamps], dtype=torch.float64),
    }


# --- which frames --------------------------------------------------------------------------------------------------


def _count_frames(video: Video, settings: VideoSettings) -> tuple[int, bool]:
    """Number of frames to take, and whether they are sampled.

    A video with `frames_indices` is a sample already. Else `do_sample_frames` of the video decides, then the request's;
    else videos with a rate are sampled, and those without one by the generation's default.
    """
    metadata, total = video.metadata, video.num_frames
    if metadata.frames_indices is not None:
        wanted = False
    elif metadata.do_sample_frames is not None:
        wanted = metadata.do_sample_frames
    elif settings.sampling_asked is not None:
        wanted = settings.sampling_asked
    else:
        wanted = metadata.fps is not None or settings.do_sample_frames
    if wanted:
        return _count_sample(total, metadata.fps, settings), True
    if total > settings.max_frames:
        raise MediaTooLargeError(
            f"the video has {total} frames and is not sampled, more than max_frames={settings.max_frames}; have "
            "it sampled, give fewer frames, or raise max_frames in mm_processor_kwargs"
        )
    return total, False


def _count_sample(total: int, fps: float | None, settings: VideoSettings) -> int:
    step, asked = settings.temporal_patch_size, settings.num_frames
    if settings.bounds_all_frames:
        count = int(total / (fps or UNKNOWN_FPS) * settings.fps)
        return asked or min(max(count, settings.min_frames), settings.max_frames, total)
    if asked is not None:
        count = round(asked / step) * step
        if count > total:
            raise ProcessorKwargsError(
                f"num_frames={asked}, but the video has only {total} frames; ask for fewer, or fps"
            )
    else:
        if fps is None:
            raise ProcessorKwargsError(
                "the video came as frames without their rate, and must be sampled by it; give (frames, {'fps': 25}), "
                "or num_frames or do_sample_frames=False in mm_processor_kwargs"
            )
        most = min(settings.max_frames, total) // step * step
        count = math.floor(min(max(total / fps * settings.fps, settings.min_frames), most) / step) * step
    return max(count, min(step, total))


def _spread(total: int, count: int, settings: VideoSettings) -> list[int]:
    """Indices of `count` frames: evenly from the first to the last (Qwen3-VL), or at the start of equal parts."""
    if settings.bounds_all_frames:
        indices: list[int] = np.linspace(0, total - 1, count).round().astype(int).tolist()
        return indices
    # torch's float32 steps, as transformers has them; rounding can add one past the end
    return [i for i in torch.arange(0, total, total / count).int().tolist() if i < total][:count]


def _seconds(video: Video, indices: Sequence[int]) -> list[float]:
    """Times of the frames: by the average rate, as in transformers, unless the rate varies."""
    metadata = video.metadata
    source = metadata.frames_indices or range(video.num_frames)
    by_rate = [source[i] / (metadata.fps or UNKNOWN_FPS) for i in indices]
    if metadata.fps is None:
        return by_rate
    stated = video.timestamps(indices)
    half_a_digit = 0.05  # prompts have tenths of seconds
    varies = any(abs(a - b) > half_a_digit for a, b in zip(by_rate, stated, strict=True))
    return stated if varies else by_rate


# --- pixels --------------------------------------------------------------------------------------------------------


def frame_size(settings: VideoSettings, count: int, height: int, width: int) -> tuple[int, int]:
    """Height and width of `count` frames after resizing.

    Raises:
        MediaError: one side is more than 200 times the other.
    """
    least, most, factor, step = settings.min_pixels, settings.max_pixels, settings.factor, settings.temporal_patch_size
    try:
        if settings.bounds_all_frames:
            if settings.cap_pixels_per_frame:
                share = min(settings.max_video_tokens * factor**2, most // count)
                most = max(share, int(least * 1.05)) * count
            return _smart_resize_video(max(count, step), height, width, step, factor, least, most)
        if settings.cap_pixels_per_frame:
            total = int(settings.max_video_tokens * factor * factor * 0.9)
            most = max(min(most, total * step // count), int(least * 1.05))
        size: tuple[int, int] = smart_resize(height, width, factor, least, most)
    except ValueError as error:
        raise MediaError(f"frames of {width} x {height} pixels: {error}") from error
    return size


def _smart_resize_video(
    count: int, height: int, width: int, step: int, factor: int, least: int, most: int
) -> tuple[int, int]:
    """Qwen3-VL's: like `smart_resize`, but the bounds are for all frames together."""
    if min(height, width) < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    if max(height, width) / min(height, width) > 200:
        raise ValueError("one side is more than 200 times the other")
    high, wide = round(height / factor) * factor, round(width / factor) * factor
    volume = round(count / step) * step * high * wide
    if volume > most:
        beta = math.sqrt(count * height * width / most)
        high, wide = (max(factor, math.floor(side / beta / factor) * factor) for side in (height, width))
    elif volume < least:
        beta = math.sqrt(least / (count * height * width))
        high, wide = (math.ceil(side * beta / factor) * factor for side in (height, width))
    return high, wide


def _resize(frame: np.ndarray[Any, Any], height: int, width: int) -> Tensor:
    """A frame `[h, w, 3]` to `[3, height, width]`: bytes are resized as bytes, as torchvision does on a CPU."""
    pixels = torch.from_numpy(frame).permute(2, 0, 1).contiguous()
    if pixels.shape[1:] == (height, width):
        return pixels
    resized = torch.nn.functional.interpolate(pixels[None], (height, width), mode="bicubic", antialias=True)
    return resized[0]


def _patches(frames: Iterator[Tensor], grid: tuple[int, int, int], settings: VideoSettings) -> Tensor:
    """Normalise and cut `temporal_patch_size` frames at a time: `[t * h * w, 3 * step * patch * patch]`.

    Patches are grouped by token: the `merge_size ** 2` patches of one follow each other. The last frame is repeated to
    fill the last group.
    """
    step, patch, merge = settings.temporal_patch_size, settings.patch_size, settings.merge_size
    mean, std = (
        (torch.tensor(list(values)) * (1.0 / settings.rescale_factor)).view(3, 1, 1)
        for values in (settings.image_mean, settings.image_std)
    )
    _, high, wide = grid
    patches = torch.empty(grid[0], high * wide, 3 * step * patch * patch)
    for group_patches in patches:
        group = list(islice(frames, step))
        pixels = torch.stack(group + group[-1:] * (step - len(group))).float().sub_(mean).div_(std)
        pixels = pixels.view(step, 3, high // merge, merge, patch, wide // merge, merge, patch)
        group_patches.copy_(pixels.permute(2, 5, 3, 6, 1, 0, 4, 7).reshape(group_patches.shape))
    return patches.flatten(0, 1)
