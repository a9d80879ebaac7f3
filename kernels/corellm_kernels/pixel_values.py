"""Pixels to floats, bit for bit as transformers' processors make them, in less of the time.

Transformers' Pillow processors make an array of an image before they resize it, and of that an image again; they
rescale through float64 copies and normalize transposed arrays. Here images are resized as they come, and each pass
writes straight into the layout of the result, `[channels, height, width]`. The arithmetic is transformers' own,
operation by operation; unusual images, sizes or factors are left to transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import numpy as np
from PIL import Image

_STEPS_TO_RESIZE = (
    "_preprocess_image_like_inputs", "_prepare_image_like_inputs", "_prepare_images_structure", "process_image",
    "convert_to_rgb", "_preprocess", "resize",
)  # fmt: skip
"""Methods of transformers' between a call and the pixels resized."""


def patch_processor(processor: Any) -> None:
    """Replace what a Hugging Face processor does with pixels by the faster ways of this module.

    Only in transformers' own Pillow classes that override neither `rescale` nor `normalize`, and resizing only where no
    step before it is overridden; all other processors stay as they are.
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
    """The class with methods replaced; it keeps its name, by which processors are saved and loaded."""
    from transformers.image_processing_backends import PilBackend

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

    def preprocess(self: Any, images: Any, *args: Any, **kwargs: Any) -> Any:
        resized = _resized(images, kwargs)
        if resized is not None:
            images, kwargs = resized, kwargs | {"do_resize": False}
        return kind._preprocess_image_like_inputs(self, images, *args, **kwargs)

    def reduce(self: Any) -> tuple[Any, ...]:
        return _unpickle, (kind, self.__dict__)

    members = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    members |= {"rescale": rescale, "normalize": normalize, "__reduce__": reduce}
    if all(getattr(kind, step) is getattr(PilBackend, step) for step in _STEPS_TO_RESIZE):
        members["_preprocess_image_like_inputs"] = preprocess
    return type(kind.__name__, (kind,), members)


def _unpickle(kind: Any, state: dict[str, Any]) -> Any:
    """Restore a patched processor from a pickle."""
    processor = kind.__new__(kind)
    processor.__dict__.update(state)
    patch_processor(processor)
    return processor


def _resized(images: Any, arguments: dict[str, Any]) -> list[Image.Image] | None:
    """The images, resized as `PilBackend.resize` does; None if that is not wanted, or has to be left to it.

    Args:
        images: of a processor's call.
        arguments: of `_preprocess`.
    """
    from transformers.image_transforms import get_resize_output_image_size
    from transformers.image_utils import SizeDict

    size, resample = arguments.get("size"), arguments.get("resample")
    if not arguments.get("do_resize") or not isinstance(size, SizeDict) or not isinstance(resample, int):
        return None
    if {name for name, value in size if value} not in ({"shortest_edge"}, {"height", "width"}):
        return None
    if not isinstance(images, list) or not all(isinstance(x, Image.Image) and x.mode == "RGB" for x in images):
        return None
    resized = []
    for image in images:
        height, width = size.height, size.width
        if size.shortest_edge:
            without_pixels = np.broadcast_to(np.uint8(0), (3, image.height, image.width))
            height, width = get_resize_output_image_size(
                without_pixels, size.shortest_edge, default_to_square=False, input_data_format="channels_first"
            )
        resized.append(image.resize((width, height), resample))
    return resized


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
