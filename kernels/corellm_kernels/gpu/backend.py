"""The attention backend that runs on these kernels: single-token decodes by one, chunks of prompts by another.

Imports Triton only when a backend is made, not to check whether one can run.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from torch import Tensor

from corellm.attention.backend import AttentionBackend, AttentionCall, AttentionMetadata, LayerCache

_LEAST_CAPABILITY = (8, 0)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class TritonAttention(AttentionBackend):
    """Paged attention by Triton kernels, for NVIDIA GPUs since Ampere."""

    name: ClassVar[str] = "triton"
    priority: ClassVar[int] = 100
    capturable: ClassVar[bool] = True
    rotates: ClassVar[bool] = True
    softcaps: ClassVar[bool] = True
    two_way: ClassVar[bool] = True
    sinks: ClassVar[bool] = True

    def __init__(self) -> None:
        from corellm_kernels.gpu.paged_decode import paged_decode
        from corellm_kernels.gpu.paged_prefill import paged_prefill
        from corellm_kernels.gpu.rotary import rotate_and_cache, write_cache

        self._decode, self._prefill = paged_decode, paged_prefill
        self._write, self._rotate_and_write = write_cache, rotate_and_cache

    @classmethod
    def unsupported(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        """Return why not; None for NVIDIA GPUs since compute capability 8.0 in float16, bfloat16 or float32."""
        if device.type != "cuda":
            return f"runs on NVIDIA GPUs, not on {device}"
        capability = torch.cuda.get_device_capability(device)
        if capability < _LEAST_CAPABILITY:
            name, has = torch.cuda.get_device_name(device), ".".join(map(str, capability))
            return f"needs a GPU of compute capability 8.0 or more; {name} has {has}"
        if find_spec("triton") is None:
            return "needs Triton: pip install triton"
        return None if dtype in _DTYPES else f"does not compute in {dtype}"

    @classmethod
    def quantized_dtypes(cls, device: torch.device) -> tuple[torch.dtype, ...]:
        """Return int8, and 8-bit floats since compute capability 8.9."""
        has_floats = torch.cuda.get_device_capability(device) >= (8, 9)
        return (torch.int8, torch.float8_e4m3fn) if has_floats else (torch.int8,)

    def forward(self, call: AttentionCall, cache: LayerCache, metadata: AttentionMetadata) -> Tensor:
        """See `AttentionBackend.forward`."""
        query, rotary = call.query, call.rotary
        scales = {"key_scale": cache.key_scale, "value_scale": cache.value_scale}
        if rotary is None:
            self._write(call.key, call.value, cache.key, cache.value, metadata.slot_mapping, **scales)
        else:
            self._rotate_and_write(
                query, call.key, call.value, rotary.cos, rotary.sin, cache.key, cache.value, metadata.slot_mapping,
                sections=rotary.sections, **scales,
            )  # fmt: skip
        out = query.new_empty(*query.shape[:2], call.value.shape[2])
        caches = (cache.key, cache.value)
        sinks = None if call.sinks is None else call.sinks.contiguous()
        options: dict[str, Any] = {
            "scale": call.scale, "sliding_window": call.sliding_window, "softcap": call.softcap, "sinks": sinks,
            **scales,
        }  # fmt: skip
        tables, lens = metadata.block_tables, metadata.seq_lens_tensor
        decodes = slice(0, metadata.num_decodes)
        self._decode(query[decodes], *caches, tables[decodes], lens[decodes], out[decodes], **options)
        if metadata.num_decodes < len(lens):
            chunks = slice(metadata.num_decodes, None)
            starts = metadata.query_start_loc[chunks]
            options |= {"visible_lens": metadata.visible_lens, "span_starts": metadata.span_starts}
            self._prefill(query, *caches, tables[chunks], lens[chunks], starts, out, **options)
        return out
