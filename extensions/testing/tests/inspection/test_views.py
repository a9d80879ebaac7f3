"""Views of tensors show the finite values of broken ones, too."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from corellm_testing.inspection.views import tensor_views


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_infinite_values_do_not_spoil_a_view(dtype: torch.dtype) -> None:
    """The scale is that of the finite values; infinity is white, minus infinity and NaN are black."""
    tensor = torch.linspace(0, 1, 3 * 16 * 16).reshape(3, 16, 16).to(dtype)
    tensor[:, 0, :3] = torch.tensor([float("inf"), float("-inf"), float("nan")])
    with np.errstate(all="raise"):
        (view,) = tensor_views("image", {"pixel_values": tensor}, None)
    assert view.caption.startswith("pixel_values, 16 x 16, from 0.00391 to 1")
    pixels = np.array(Image.open(BytesIO(view.content)))
    assert pixels[0, :3].tolist() == [[255] * 3, [0] * 3, [0] * 3]
    assert 100 < pixels[8, 8, 1] < 150


def test_a_view_without_finite_values_is_black() -> None:
    """A tensor of nothing but NaN still has a view."""
    (view,) = tensor_views("image", {"pixel_values": torch.full((3, 8, 8), float("nan"))}, None)
    assert not np.array(Image.open(BytesIO(view.content))).any()
