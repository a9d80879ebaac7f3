"""Pixels to floats, bit for bit as transformers' processors make them, in a quarter of the time.

Transformers' Pillow processors rescale through float64 copies and normalize transposed arrays. Here each pass writes
straight into the layout of the result, `[channels, height, width]`. The arithmetic is transformers' own, operation by
operation; unusual images or factors are left to transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import numpy as np


def patch_processor(processor: Any) -> None:
    """Replace a Hugging Face processor's `rescale` and `normalize` by the faster ones of this module.

    Only in transformers' own Pillow classes that override neither method; all other processors stay as they are.
    """
    for part in (processor, getattr(processor, "__dict__", {}).get("image_processor")):
        kind = cast(Any, type(part))  # mypy: no class is hashable
        if kind.__module__.startswith("transformers.") and _inherits_both(kind):
            part.__class__ = _patched_class(kind)


def _inherits_both(kind: Any) -> bool:
    """Whether a processor works with Pillow and numpy, and has both methods from transformers' base class."""
    from transformers.image_processing_backends import PilBackend

    usual: type[Any] = PilBackend
    return issubclass(kind, usual) and kind.rescale is usual.rescale and kind.normalize is usual.normalize


@cache
def _patched_class(kind: Any) -> type[Any]:
    """The class with two methods replaced; it keeps its name, by which processors are saved and loaded."""

    def rescale(self: Any, image: Any, scale: Any, **kwargs: Any) -> Any:
        if type(image) is np.ndarray and isinstance(scale, float):
            return rescaled(image, scale)
        return kind.rescale(self, image, scale, **kwargs)

    def normalize(self: Any, image: Any, mean: Any, std: Any, **kwargs: Any) -> Any:
        if type(image) is np.ndarray and image.ndim == 3 and image.dtype == np.float32:
            factors = _per_channel(mean, len(image)), _per_channel(std, len(image))
            if factors[0] is not None and factors[1] is not None:
                return normalized(image, factors[0], factors[1])
        return kind.normalize(self, image, mean, std, **kwargs)

    def reduce(self: Any) -> tuple[Any, ...]:
        return _unpickle, (kind, self.__dict__)

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind.__name__, (kind,), {**names, "rescale": rescale, "normalize": normalize, "__reduce__": reduce})


def _unpickle(kind: Any, state: dict[str, Any]) -> Any:
    """Restore a patched processor from a pickle."""
    processor = kind.__new__(kind)
    processor.__dict__.update(state)
    patch_processor(processor)
    return processor


def rescaled(image: np.ndarray[Any, Any], scale: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """`image * scale`, multiplied in float64 and rounded to float32 once, in the order of the axes."""
    values = np.empty(image.shape, np.float32)
    np.multiply(image, scale, out=values, dtype=np.float64, casting="unsafe")
    return values


def normalized(
    image: np.ndarray[Any, np.dtype[np.float32]], mean: Sequence[float], std: Sequence[float]
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """`(image - mean) / std` in float32, of an image `[channels, height, width]`, with a mean and std per channel."""
    values = np.empty(image.shape, np.float32)
    np.subtract(image, np.array(mean, np.float32)[:, None, None], out=values)
    values /= np.array(std, np.float32)[:, None, None]
    return values


def _per_channel(given: Any, channels: int) -> Sequence[float] | None:
    """One number per channel; None if `given` is neither a number nor such a list."""
    if isinstance(given, float):
        return [given] * channels
    ordinary = isinstance(given, (list, tuple)) and len(given) == channels and all(isinstance(x, float) for x in given)
    return given if ordinary else None
