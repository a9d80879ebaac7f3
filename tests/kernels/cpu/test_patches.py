"""Products over patches equal torch's convolutions; other convolutions stay."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from corellm_kernels.cpu.patches import PatchProduct, PatchProduct2d, PatchProduct3d, pack_patches


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("convolution", "size", "pixels"),
    [(nn.Conv2d, 14, (56, 30)), (nn.Conv2d, (4, 2), (13, 9)), (nn.Conv3d, (2, 7, 7), (4, 21, 14))],
)
@torch.inference_mode()
def test_it_equals_the_convolution(
    convolution: type[nn.Conv2d], size: int, pixels: tuple[int, ...], bias: bool
) -> None:
    """Also where pixels remain beyond whole patches."""
    torch.manual_seed(0)
    original = convolution(3, 20, size, stride=size, bias=bias)
    x = torch.randn(2, 3, *pixels)
    kind = {nn.Conv2d: PatchProduct2d, nn.Conv3d: PatchProduct3d}[convolution]
    made = kind(original)
    assert isinstance(made, convolution)  # forward passes may ask
    assert (made.stride, made.kernel_size, made.in_channels) == (original.stride, original.kernel_size, 3)
    torch.testing.assert_close(made(x), original(x), rtol=1e-4, atol=1e-5)
    half, wanted = kind(original.bfloat16()), original.float()(x.bfloat16().float())
    assert half.weight.dtype == torch.bfloat16
    torch.testing.assert_close(half(x.bfloat16()).float(), wanted, rtol=2e-2, atol=2e-2)


def test_only_those_over_patches_are_replaced() -> None:
    kept = [
        nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 2, stride=2, padding=1), nn.Conv2d(4, 4, 2, stride=2, groups=2),
        nn.Conv2d(3, 4, 2, stride=2, dilation=2), nn.Conv2d(3, 4, 2, stride=2, padding="valid"),
        nn.Conv2d(3, 4, 2, stride=2, dtype=torch.float16), nn.Conv1d(3, 4, 2, stride=2),
    ]  # fmt: skip
    model = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 2, stride=2)), *kept).requires_grad_(False).eval()
    assert pack_patches(model) == 1
    assert isinstance(model[0][0], PatchProduct)
    assert [*model][1:] == kept
