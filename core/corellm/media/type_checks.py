"""Whether a value is an image, an array or a tensor, without importing the libraries that define them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    import numpy as np
    import torch
    from PIL import Image


def _is_loaded_instance(value: object, module: str, name: str) -> bool:
    """`isinstance` that imports nothing: a value's class is in a module that is loaded."""
    cls = getattr(sys.modules.get(module), name, None)
    return cls is not None and isinstance(value, cls)


def is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    """Whether `value` is a `torch.Tensor`."""
    return _is_loaded_instance(value, "torch", "Tensor")


def is_array(value: object) -> TypeGuard[np.ndarray[Any, Any]]:
    """Whether `value` is a `numpy.ndarray`."""
    return _is_loaded_instance(value, "numpy", "ndarray")


def is_image(value: object) -> TypeGuard[Image.Image]:
    """Whether `value` is a `PIL.Image.Image`."""
    return _is_loaded_instance(value, "PIL.Image", "Image")
