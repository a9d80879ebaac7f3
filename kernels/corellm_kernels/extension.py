"""The extension that registers the kernels with the engine. Torch and Triton are imported by its hooks only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from corellm.hookspecs import hookimpl

if TYPE_CHECKING:
    import torch
    from torch import nn


class Kernels:
    """An extension of corellm; other extensions take precedence."""

    @hookimpl
    def register_attention_backends(self) -> dict[str, str]:
        """Return paged attention in Triton."""
        return {"triton": "corellm_kernels.backend:TritonAttention"}

    @hookimpl(trylast=True)
    def register_sampling(self, device: torch.device) -> Callable[..., tuple[torch.Tensor, torch.Tensor]] | None:
        """Return sampling that does not sort the vocabulary; None where Triton's attention does not run."""
        if not _run_on(device):
            return None
        from corellm_kernels.sampling import sample

        return sample

    @hookimpl(trylast=True)
    def register_merging(self, device: torch.device) -> Callable[..., None] | None:
        """Return merging in one launch; None where Triton's attention does not run."""
        if not _run_on(device):
            return None
        from corellm_kernels.merging import merge_rows

        return merge_rows

    @hookimpl(trylast=True)
    def fuse_layers(self, model: nn.Module, device: torch.device, dtype: torch.dtype) -> list[str] | None:
        """Replace norms, MLPs, attention and residuals by fewer kernels; None where Triton's attention does not run."""
        from corellm_kernels.backend import TritonAttention

        if TritonAttention.unsupported(device, dtype) is not None:
            return None
        from corellm_kernels.fusing import fuse

        return fuse(model)


def _run_on(device: torch.device) -> bool:
    import torch

    from corellm_kernels.backend import TritonAttention

    return TritonAttention.unsupported(device, torch.float32) is None
