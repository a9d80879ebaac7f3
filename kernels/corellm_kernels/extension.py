"""The extension that registers the kernels with the engine. Torch and Triton are imported by its hooks only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from corellm.hookspecs import hookimpl

if TYPE_CHECKING:
    import torch
    from torch import nn

    from corellm.loading.weight_key import WeightKey
    from corellm.quantization import MakeQuantize, Quantize


class Kernels:
    """An extension of corellm; other extensions take precedence."""

    @hookimpl
    def register_attention_backends(self) -> dict[str, str]:
        """Return paged attention in Triton and in C++."""
        return {
            "triton": "corellm_kernels.gpu.backend:TritonAttention",
            "compiled": "corellm_kernels.cpu.backend:CompiledAttention",
        }

    @hookimpl(trylast=True)
    def register_sampling(self, device: torch.device) -> Callable[..., tuple[torch.Tensor, torch.Tensor]] | None:
        """Return sampling that does not sort the vocabulary; None where neither Triton nor C++ runs."""
        import torch

        if _run_on(device):
            from corellm_kernels.gpu.sampling import sample

            return sample
        from corellm_kernels.cpu.backend import CompiledAttention

        if CompiledAttention.unsupported(device, torch.float32) is None:
            from corellm_kernels.cpu.sampling import sample as sample_on_cpu

            return sample_on_cpu
        return None

    @hookimpl(trylast=True)
    def register_merging(self, device: torch.device) -> Callable[..., None] | None:
        """Return merging in one launch; None where Triton's attention does not run."""
        if not _run_on(device):
            return None
        from corellm_kernels.gpu.merging import merge_rows

        return merge_rows

    @hookimpl(trylast=True)
    def register_low_rank(self, device: torch.device, dtype: torch.dtype) -> Callable[..., None] | None:
        """Return products of low rank in C++; None where it does not run."""
        from corellm_kernels.cpu.backend import CompiledAttention
        from corellm_kernels.cpu.low_rank import DTYPES, add_low_rank

        return add_low_rank if dtype in DTYPES and CompiledAttention.unsupported(device, dtype) is None else None

    @hookimpl
    def register_quantization(self, name: str) -> MakeQuantize | None:
        """Return rounding to 8 bits, with a factor for each output."""
        if name != "int8":
            return None
        from corellm_kernels.int8_linear import to_int8

        return lambda model: to_int8

    @hookimpl
    def speed_up_processor(self, processor: Any) -> None:
        """Have transformers' own Pillow processors rescale and normalize pixels in fewer passes."""
        from corellm_kernels.pixel_values import patch_processor

        patch_processor(processor)

    @hookimpl(trylast=True)
    def fuse_layers(
        self,
        model: nn.Module,
        device: torch.device,
        dtype: torch.dtype,
        quantize: Quantize | None,
        kept: WeightKey | None,
    ) -> list[str] | None:
        """Replace layers by ones that take fewer kernels, on CPUs also linear layers by packed ones.

        None where neither Triton's attention nor that in C++ runs.
        """
        from corellm_kernels.cpu.backend import CompiledAttention
        from corellm_kernels.gpu.backend import TritonAttention

        if TritonAttention.unsupported(device, dtype) is None:
            from corellm_kernels.fusion.fusing import fuse
            from corellm_kernels.gpu.kernel_set import GPU_KERNELS

            return fuse(model, GPU_KERNELS)
        if CompiledAttention.unsupported(device, dtype) is None:
            from corellm_kernels.cpu.fusing import fuse_for_cpu

            return fuse_for_cpu(model, quantize, kept)
        return None


def _run_on(device: torch.device) -> bool:
    import torch

    from corellm_kernels.gpu.backend import TritonAttention

    return TritonAttention.unsupported(device, torch.float32) is None
