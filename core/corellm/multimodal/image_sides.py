"""Images much longer than wide: let through to the model's processor, unless it would make them enormous.

Many processors take them, so what one refuses is for it to say; a processor that scales by the shorter side makes
gigabytes of a line of a few bytes. Knows Hugging Face image processors from the outside only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

from corellm.errors import CorellmError, MediaError, MediaTooLargeError

if TYPE_CHECKING:
    from PIL.Image import Image

USUAL_RATIO = 200
"""Of the longer side to the shorter: up to here an image may be scaled to more than `max_image_pixels`."""


def plain_size(size: Any) -> Any:
    """A size as people write it, not as transformers' class of that name."""
    given = asdict(size) if is_dataclass(size) and not isinstance(size, type) else size
    return {side: value for side, value in given.items() if value is not None} if isinstance(given, Mapping) else given


def check_scaled(image: Image, processor: Any, mm_kwargs: Mapping[str, Any], max_pixels: int) -> None:
    """Refuse an image that the processor would scale by its shorter side to more than `max_pixels`.

    Raises:
        MediaTooLargeError: with the size it would have.
    """
    size = plain_size(mm_kwargs.get("size", getattr(getattr(processor, "image_processor", None), "size", None)))
    if not isinstance(size, Mapping) or set(size) != {"shortest_edge"}:
        return
    short, long = sorted(image.size)
    edge = int(size["shortest_edge"])
    scaled = edge * (edge * long // short)
    if long > USUAL_RATIO * short and scaled > max_pixels:
        raise MediaTooLargeError(
            f"{image.width} x {image.height} pixels: one side is {long / short:.0f} times the other, and this model's "
            f"processor scales the shorter one to {edge}, to {scaled} pixels in all, more than the {max_pixels} "
            "allowed; crop it",
            expected=max_pixels, got=scaled,
        )  # fmt: skip


@contextmanager
def refusals_named(images: Sequence[Image]) -> Iterator[None]:
    """What a processor says of images of extreme sides is the request's fault, not the adapter's.

    Raises:
        MediaError: it refuses one.
    """
    try:
        yield
    except Exception as error:
        extreme = next((image for image in images if max(image.size) > USUAL_RATIO * min(image.size)), None)
        if extreme is None or isinstance(error, CorellmError):
            raise
        raise MediaError(
            f"{extreme.width} x {extreme.height} pixels: this model's processor does not take such sides; crop it",
            got=extreme.size,
        ) from error
