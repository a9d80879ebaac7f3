"""Images of an extreme aspect ratio: refused only where the model's processor would scale them above the limit.

Many processors accept them, others raise an error of their own; one that scales by the shorter side makes gigabytes of
an image of a few bytes. Knows Hugging Face image processors from the outside only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

from corellm.errors import CorellmError, MediaError, MediaTooLargeError

if TYPE_CHECKING:
    from PIL.Image import Image

USUAL_RATIO = 200
"""Longer side to shorter side: up to this ratio an image may be scaled to more than `max_image_pixels`."""


def plain_size(size: Any) -> Any:
    """A size as a plain dict or number, not transformers' class."""
    given = asdict(size) if is_dataclass(size) and not isinstance(size, type) else size
    return {side: value for side, value in given.items() if value is not None} if isinstance(given, Mapping) else given


def check_scaled(image: Image, processor: Any, mm_kwargs: Mapping[str, Any], max_pixels: int) -> None:
    """Refuse an extreme image that the processor would scale by its shorter side to more than `max_pixels`.

    Raises:
        MediaTooLargeError: names the size it would have.
    """
    edge = _shortest_edge(getattr(processor, "image_processor", None), mm_kwargs)
    if edge is None:
        return
    short, long = sorted(image.size)
    scaled = edge * (edge * long // short)
    if scaled > max_pixels:
        raise MediaTooLargeError(
            f"{image.width} x {image.height} pixels: one side is {long / short:.0f} times the other, and this model's "
            f"processor scales the shorter one to {edge}, to {scaled} pixels in all, more than the {max_pixels} "
            "allowed (max_image_pixels); crop it",
            expected=max_pixels, got=scaled,
        )  # fmt: skip


def _shortest_edge(part: Any, mm_kwargs: Mapping[str, Any]) -> int | None:
    """The length to which an image processor scales the shorter side; None if it scales otherwise."""
    size = plain_size(mm_kwargs.get("size", getattr(part, "size", None)))
    if isinstance(size, Mapping) and set(size) == {"shortest_edge"}:
        size = size["shortest_edge"]
    elif mm_kwargs.get("default_to_square", getattr(part, "default_to_square", True)):
        return None
    try:
        return int(float(size)) if isinstance(size, Real) else None
    except (OverflowError, ValueError):  # no finite number, which is refused
        return None


def is_extreme(image: Image) -> bool:
    """Whether one side is so much longer than the other that processors may refuse it."""
    return bool(max(image.size) > USUAL_RATIO * min(image.size))


@contextmanager
def reraise_for_aspect_ratio(extreme: Image) -> Iterator[None]:
    """Raise a processor's error as the request's, not the adapter's, where an image is extreme.

    Raises:
        MediaError: the processor refused it.
    """
    try:
        yield
    except CorellmError:
        raise
    except Exception as error:
        raise MediaError(
            f"{extreme.width} x {extreme.height} pixels: this model's processor does not take such sides; crop it",
            got=extreme.size,
        ) from error
