"""What values hold, as plain data: to compare a value with itself at another time.

Knows arrays, tensors, images and the containers of a request. Knows no hook and no rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from corellm.media.type_checks import is_array, is_image, is_tensor
from corellm.media.video import Video
from corellm.multimodal.items import ModalityItems


def content(value: Any) -> Any:
    """Return a copy of what a value holds, bit for bit, that `==` compares; an object of another kind is itself."""
    if is_tensor(value):
        import torch

        plain = value.detach().cpu().contiguous().flatten().view(torch.uint8)
        return str(value.dtype), tuple(value.shape), plain.numpy().tobytes()
    if is_array(value):
        return value.dtype.str, value.shape, value.tobytes()
    if is_image(value):
        return value.mode, value.size, value.tobytes(), content(value.info), dict(value.getexif())
    if isinstance(value, Video):
        return content(value.content)
    if isinstance(value, ModalityItems):
        return [content(value.content(i)) for i in range(len(value))]
    if isinstance(value, Mapping):
        return {key: content(element) for key, element in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [content(element) for element in value]
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), {field.name: content(getattr(value, field.name)) for field in fields(value)}
    return value
