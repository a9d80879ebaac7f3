"""RMSNorm and LayerNorm in C++, as `corellm_kernels.gpu.norms` and `head_norms` have them in Triton."""

from __future__ import annotations

from torch import Tensor

from corellm_kernels.cpu.arguments import NormArguments
from corellm_kernels.cpu.library import empty, launch


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None) -> Tensor:
    """Divide each row by its root mean square, and multiply by the weight.

    Args:
        x: `[..., width]`, contiguous.
        weight: `[width]`, of `x`'s type.
        eps: added to the mean square.
        residual: of `x`'s shape and type, contiguous: `x` is added to it in place, and the sum is what is normalized.

    Returns:
        `[..., width]`, contiguous.
    """
    return _norm(x, weight, None, eps, residual, centered=False)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, *, residual: Tensor | None = None) -> Tensor:
    """Centre each row, divide it by its standard deviation, multiply by the weight and add the bias.

    Args:
        x: `[..., width]`, contiguous.
        weight, bias: `[width]`, of `x`'s type.
        eps: added to the variance.
        residual: of `x`'s shape and type, contiguous: `x` is added to it in place, and the sum is what is normalized.

    Returns:
        `[..., width]`, contiguous.
    """
    return _norm(x, weight, bias, eps, residual, centered=True)


def norm_heads(
    query: Tensor, key: Tensor, query_weight: Tensor, key_weight: Tensor, query_eps: float, key_eps: float
) -> None:
    """Divide every head by its root mean square, and multiply it by the weight, in place.

    Args:
        query: `[n, heads, size]`, written to. It and the next may be views of one projection: of any stride from token
            to token, contiguous within one.
        key: `[n, kv_heads, size]`, written to.
        query_weight, key_weight: `[size]`, of the heads' type.
        query_eps, key_eps: added to the mean square.
    """
    for x, weight, eps in ((query, query_weight, query_eps), (key, key_weight, key_eps)):
        num_tokens, heads, size = x.shape
        stride = x.view(num_tokens, -1).stride(0)
        _launch(x, stride, None, weight, None, x, (num_tokens, heads, size), eps, centered=False)


def _norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, residual: Tensor | None, *, centered: bool
) -> Tensor:
    out, width = empty(x.shape, x.dtype), x.shape[-1]
    rows = x.view(-1, width)
    if residual is not None:
        residual.view(-1, width)  # contiguous, or the rows are not where the kernel looks for them
    _launch(x, width, residual, weight, bias, out, (len(rows), 1, width), eps, centered=centered)
    return out


def _launch(
    x: Tensor,
    stride: int,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    shape: tuple[int, int, int],
    eps: float,
    *,
    centered: bool,
) -> None:
    """Norm `shape`, `[rows, heads, width]`: rows are `stride` apart in `x` and `out`, contiguous in `residual`."""
    tensors = (x, residual, weight, bias, out)
    if any(t is not None and t.dtype != x.dtype for t in tensors):
        raise TypeError(f"norms take one type, not {[t.dtype for t in tensors if t is not None]}")
    given = NormArguments(
        x.data_ptr(), stride, None if residual is None else residual.data_ptr(), shape[1] * shape[2],
        weight.data_ptr(), None if bias is None else bias.data_ptr(), out.data_ptr(),
        stride, *shape, eps, centered,
    )  # fmt: skip
    launch("norm", (x.dtype,), given, *tensors)
