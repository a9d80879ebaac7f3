"""The door through which the kernels come into the engine. Imports neither torch nor Triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from corellm.hookspecs import hookimpl

if TYPE_CHECKING:
    import torch
    from torch import nn


class Kernels:
    """An extension of corellm; others' offers go before its own."""

    @hookimpl
    def register_attention_backends(self) -> dict[str, str]:
        """Paged attention in Triton."""
        return {"triton": "corellm_kernels.backend:TritonAttention"}

    @hookimpl(trylast=True)
    def register_sampling(self, device: torch.device) -> Callable[..., tuple[torch.Tensor, torch.Tensor]] | None:
        """Without sorting the vocabulary, where Triton's attention runs."""
        if not _run_on(device):
            return None
        from corellm_kernels.sampling import sample

        return sample

    @hookimpl(trylast=True)
    def register_merging(self, device: torch.device) -> Callable[..., None] | None:
        """In one launch, where Triton's attention runs."""
        if not _run_on(device):
            return None
        from corellm_kernels.merging import merge_rows

        return merge_rows

    @hookimpl(trylast=True)
    def fuse_layers(self, model: nn.Module, device: torch.device, dtype: torch.dtype) -> list[str] | None:
        """Norms, feed-forward networks, attention and residuals in fewer kernels, where Triton's attention runs."""
        from corellm_kernels.backend import TritonAttention

        if TritonAttention.unsupported(device, dtype) is not None:
            return None
        from corellm_kernels.fusing import fuse

        return fuse(model)


def _run_on(device: torch.device) -> bool:
    import torch

    from corellm_kernels.backend import TritonAttention

    return TritonAttention.unsupported(device, torch.float32) is None
