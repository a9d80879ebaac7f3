"""The attention backend on the C++ kernels: rotation, cache and attention in one call per layer."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from corellm.attention.backend import (
    AttentionBackend,
    AttentionCall,
    AttentionMetadata,
    CrossAttentionMetadata,
    LayerCache,
)
from corellm.errors import ContractError
from corellm_kernels.cpu.contexts import context_arguments
from corellm_kernels.cpu.cross_attention import cross_attend
from corellm_kernels.cpu.library import empty, launch, pointer, unavailable
from corellm_kernels.cpu.memory import PlanMemory
from corellm_kernels.cpu.plan import RecordedPlan

_DTYPES = (torch.float32, torch.bfloat16)


class CompiledAttention(AttentionBackend):
    """Paged attention in C++, for CPUs."""

    name: ClassVar[str] = "compiled"
    priority: ClassVar[int] = 10
    capturable: ClassVar[bool] = True
    rotates: ClassVar[bool] = True
    softcaps: ClassVar[bool] = True
    two_way: ClassVar[bool] = True
    sinks: ClassVar[bool] = True
    biases: ClassVar[bool] = True

    def __init__(self) -> None:
        self.make_graph = partial(RecordedPlan, PlanMemory())

    @classmethod
    def unsupported(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        """Return why not; None for CPUs with compiled kernels, in float32 or bfloat16."""
        if device.type != "cpu":
            return f"runs on the CPU, not on {device}"
        return unavailable() or (None if dtype in _DTYPES else f"does not compute in {dtype}")

    @classmethod
    def quantized_dtypes(cls, device: torch.device) -> tuple[torch.dtype, ...]:
        """Return int8."""
        return (torch.int8,)

    def cross_attend(self, call: AttentionCall, cache: LayerCache, metadata: CrossAttentionMetadata) -> Tensor:
        """See `AttentionBackend.cross_attend`."""
        return cross_attend(call, cache, metadata)

    def forward(self, call: AttentionCall, cache: LayerCache, metadata: AttentionMetadata) -> Tensor:
        """See `AttentionBackend.forward`."""
        given_dtypes = (call.query.dtype, call.key.dtype, call.value.dtype)
        if given_dtypes != (call.query.dtype,) * 3 or cache.key.dtype not in (call.query.dtype, torch.int8):
            raise ContractError(
                f"queries, keys and values of {', '.join(map(str, given_dtypes))} with a cache of {cache.key.dtype}; "
                "give all in the cache's type"
            )
        query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (call.query, call.key, call.value))
        out = empty((*query.shape[:2], cache.value.shape[3]), query.dtype)
        tables, starts = metadata.block_tables, metadata.query_start_loc
        lens, slots = metadata.seq_lens_tensor.long(), metadata.slot_mapping
        visible, span_starts = metadata.visible_lens, metadata.span_starts
        sinks = None if call.sinks is None else call.sinks.contiguous()
        if sinks is not None and sinks.dtype not in _DTYPES:
            sinks = sinks.float()
        given = context_arguments(
            query, cache.key, cache.value, tables, lens, starts, out, scale=call.scale, softcap=call.softcap
        )
        given.causal, given.window = 1, call.sliding_window or 0
        given.key, given.key_stride, given.key_head_stride = key.data_ptr(), key.stride(0), key.stride(1)
        given.value, given.value_stride, given.value_head_stride = value.data_ptr(), value.stride(0), value.stride(1)
        given.key_scale, given.value_scale = pointer(cache.key_scale), pointer(cache.value_scale)
        given.slots, given.visible, given.span_starts = slots.data_ptr(), pointer(visible), pointer(span_starts)
        given.sinks, given.sink_size = pointer(sinks), 0 if sinks is None else sinks.element_size()
        bias = None if call.bias is None else call.bias.table.float().contiguous()
        if bias is not None:
            given.bias, given.distances = bias.data_ptr(), bias.shape[-1]
            given.bias_stride = 0 if len(bias) == 1 else bias.stride(0)
        cos = sin = None
        if call.rotary is not None:
            cos, sin, sections = call.rotary.cos.contiguous(), call.rotary.sin.contiguous(), call.rotary.sections
            if cos.dtype != query.dtype:
                cos, sin = cos.to(query.dtype), sin.to(query.dtype)
            given.cos, given.sin, given.rotary_size = cos.data_ptr(), sin.data_ptr(), cos.shape[-1]
            ends = (-1, -1) if sections is None else (sections[0], sections[0] + sections[1])
            given.plane_stride, given.section_ends = len(query) * cos.shape[-1], ends
        quantized = (torch.int8,) if cache.key.dtype == torch.int8 else ()
        launch(
            "attention", (query.dtype, *quantized), given,
            query, key, value, cos, sin, cache.key, cache.value, slots, tables, lens, starts, visible,
            span_starts, sinks, bias, out,
        )  # fmt: skip
        return out
