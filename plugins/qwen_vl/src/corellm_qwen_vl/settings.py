"""How images and videos are processed: a checkpoint's settings, overridden by a request's checked arguments.

Knows names, types and bounds of arguments; knows no pixels. Defaults are those of transformers.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from transformers.image_utils import IMAGENET_STANDARD_MEAN, IMAGENET_STANDARD_STD, OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from corellm.errors import CheckpointError, ProcessorKwargsError

_COUNTS = ("min_pixels", "max_pixels", "num_frames", "min_frames", "max_frames", "max_video_tokens")
_FLAGS = ("do_sample_frames", "cap_pixels_per_frame")
ACCEPTED = tuple(sorted((*_COUNTS, *_FLAGS, "fps", "size")))
"""The names a request's `mm_processor_kwargs` may have; videos depend on all of them."""
FOR_IMAGES = ("max_pixels", "min_pixels", "size")
"""Names that images depend on."""

_OUR_OWN = {"bounds_all_frames", "sampling_asked"}
"""Settings that no file has."""


@dataclass(frozen=True)
class VideoSettings:
    """How videos are sampled, resized and cut. Names are the processor files', but for `_OUR_OWN`."""

    bounds_all_frames: bool
    """Whether the bounds on pixels are for all frames together (Qwen3-VL) or for each (the generations before)."""
    min_pixels: int
    max_pixels: int
    patch_size: int
    image_mean: Sequence[float]
    image_std: Sequence[float]
    max_video_tokens: int
    do_sample_frames: bool
    """Whether frames without a rate are sampled, too."""
    temporal_patch_size: int = 2
    merge_size: int = 2
    rescale_factor: float = 1 / 255
    fps: float = 2.0
    num_frames: int | None = None
    min_frames: int = 4
    max_frames: int = 768
    cap_pixels_per_frame: bool = False
    sampling_asked: bool | None = None
    """Whether the request asks for sampling; None if it does not say."""

    @property
    def factor(self) -> int:
        """Side of a token in pixels: a resized frame's sides are multiples of it."""
        return self.patch_size * self.merge_size

    def of_checkpoint(self, stated: Mapping[str, Any]) -> VideoSettings:
        """Return these settings, overridden by a processor file.

        Raises:
            CheckpointError: the file asks for other processing than bicubic resizing and normalisation.
        """
        usual = {"do_resize": True, "do_rescale": True, "do_normalize": True, "resample": 3}
        other = [f"{name}={stated[name]}" for name in usual if stated.get(name) not in (None, usual[name])]
        if other:
            raise CheckpointError(f"the checkpoint's video processor has {', '.join(other)}, which is not supported")
        size = stated.get("size") or {}
        found = {"min_pixels": size.get("shortest_edge"), "max_pixels": size.get("longest_edge")}
        names = {field.name for field in fields(self)} - _OUR_OWN - (set(found) if self.bounds_all_frames else set())
        found |= {name: stated[name] for name in names if stated.get(name) is not None}
        return replace(self, **{name: value for name, value in found.items() if value is not None})

    def of_request(self, kwargs: Mapping[str, Any]) -> VideoSettings:
        """Return these settings, overridden by a request's arguments, which `check_arguments` returned.

        Raises:
            ProcessorKwargsError: they contradict each other or the checkpoint.
        """
        names = {field.name for field in fields(self)}
        asked = {name: value for name, value in kwargs.items() if name in names}
        asked["sampling_asked"] = asked.pop("do_sample_frames", True if {"fps", "num_frames"} & set(kwargs) else None)
        if "fps" in kwargs:
            asked["num_frames"] = None
        ignored = ("min_pixels", "max_pixels") if self.bounds_all_frames else ()
        own = {name: value for name, value in kwargs.items() if name not in ignored}
        asked["min_pixels"], asked["max_pixels"] = pixel_bounds(self.min_pixels, self.max_pixels, own)
        most = asked.get("max_frames", self.max_frames)
        least = asked.setdefault("min_frames", min(self.min_frames, most))
        if least > most:
            raise ProcessorKwargsError(f"mm_processor_kwargs: min_frames={least} is above max_frames={most}")
        return replace(self, **asked)


QWEN2 = VideoSettings(
    bounds_all_frames=False, min_pixels=128 * 28 * 28, max_pixels=768 * 28 * 28, patch_size=14,
    image_mean=OPENAI_CLIP_MEAN, image_std=OPENAI_CLIP_STD, max_video_tokens=128_000, do_sample_frames=False,
)  # fmt: skip
"""Qwen2-VL and Qwen2.5-VL."""

QWEN3 = VideoSettings(
    bounds_all_frames=True, min_pixels=128 * 32 * 32, max_pixels=768 * 32 * 32, patch_size=16,
    image_mean=IMAGENET_STANDARD_MEAN, image_std=IMAGENET_STANDARD_STD, max_video_tokens=768, do_sample_frames=True,
)  # fmt: skip


def pixel_bounds(least: int, most: int, kwargs: Mapping[str, Any]) -> tuple[int, int]:
    """Fewest and most pixels, overridden by the request's `size`, `min_pixels` and `max_pixels`.

    A lower `max_pixels` lowers a checkpoint's `min_pixels`, too; below an operator's `size` it alone holds for larger
    items, as in transformers.

    Raises:
        ProcessorKwargsError: the fewest are more than the most.
    """
    size = kwargs.get("size") or {}
    most = kwargs.get("max_pixels", size.get("longest_edge", most))
    least = kwargs.get("min_pixels", size.get("shortest_edge", min(least, most)))
    if least > most and ("min_pixels" in kwargs or "max_pixels" not in kwargs):
        raise ProcessorKwargsError(
            f"mm_processor_kwargs: min_pixels={least} is above max_pixels={most}; lower one or raise the other",
            expected=most,
            got=least,
        )
    return least, most


def check_arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's processor arguments without those that are None.

    Raises:
        ProcessorKwargsError: an unknown name, a value of a wrong type or out of range, values that contradict each
            other.
    """
    if unknown := sorted(set(kwargs) - set(ACCEPTED)):
        raise ProcessorKwargsError(
            f"mm_processor_kwargs: {', '.join(map(repr, unknown))} is not known; accepted: {', '.join(ACCEPTED)}",
            expected=ACCEPTED,
            got=unknown,
        )
    given = {name: value for name, value in kwargs.items() if value is not None}
    for name, value in given.items():
        wanted = _wanted(name, value)
        if wanted:
            raise ProcessorKwargsError(
                f"mm_processor_kwargs: {name} must be {wanted}, got {value!r:.80}", expected=wanted, got=value
            )
    if {"fps", "num_frames"} <= set(given):
        raise ProcessorKwargsError(
            "mm_processor_kwargs: give either fps or num_frames, not both (None unsets what was given at start)"
        )
    pixel_bounds(1, sys.maxsize, given)  # by any checkpoint
    return given


def _wanted(name: str, value: Any) -> str | None:
    """Return what an argument must be, or None if it is that."""
    if name in _FLAGS:
        return None if isinstance(value, bool) else "True or False"
    if name == "fps":
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
        return None if fits else "a number of frames per second above 0"
    if name == "size":
        edges = ("shortest_edge", "longest_edge")
        fits = isinstance(value, Mapping) and set(value) == set(edges) and all(map(_is_count, value.values()))
        return None if fits else "{'shortest_edge': pixels, 'longest_edge': pixels}, both in all"
    return None if _is_count(value) else "an integer of at least 1"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
