"""The attention backend on the C++ kernels: rotation, cache and attention in one call per layer."""

from __future__ import annotations

from ctypes import c_int64
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
from corellm_kernels.cpu.arguments import AttentionArguments
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
        num_tokens, heads, size = query.shape
        kv_heads, value_size = value.shape[1:]
        out = empty((num_tokens, heads, value_size), query.dtype)
        tables, starts = metadata.block_tables, metadata.query_start_loc
        lens, slots = metadata.seq_lens_tensor.long(), metadata.slot_mapping
        visible, span_starts = metadata.visible_lens, metadata.span_starts
        sinks = None if call.sinks is None else call.sinks.contiguous()
        if sinks is not None and sinks.dtype not in _DTYPES:
            sinks = sinks.float()
        given = AttentionArguments(
            query=query.data_ptr(),
            key=key.data_ptr(),
            value=value.data_ptr(),
            query_stride=query.stride(0),
            query_head_stride=query.stride(1),
            key_stride=key.stride(0),
            key_head_stride=key.stride(1),
            value_stride=value.stride(0),
            value_head_stride=value.stride(1),
            key_cache=cache.key.data_ptr(),
            value_cache=cache.value.data_ptr(),
            key_strides=(c_int64 * 3)(*cache.key.stride()[:3]),
            value_strides=(c_int64 * 3)(*cache.value.stride()[:3]),
            key_scale=pointer(cache.key_scale),
            value_scale=pointer(cache.value_scale),
            slots=slots.data_ptr(),
            tables=tables.data_ptr(),
            table_stride=tables.stride(0),
            lens=lens.data_ptr(),
            starts=starts.data_ptr(),
            visible=pointer(visible),
            span_starts=pointer(span_starts),
            sinks=pointer(sinks),
            sink_size=0 if sinks is None else sinks.element_size(),
            out=out.data_ptr(),
            out_stride=out.stride(0),
            out_head_stride=out.stride(1),
            tokens=num_tokens,
            seqs=len(lens),
            heads=heads,
            kv_heads=kv_heads,
            size=size,
            value_size=value_size,
            block_size=cache.block_size,
            window=call.sliding_window or 0,
            causal=1,
            scale=call.scale,
            softcap=call.softcap or 0.0,
        )
        cos = sin = None
        if call.rotary is not None:
            cos, sin, sections = call.rotary.cos.contiguous(), call.rotary.sin.contiguous(), call.rotary.sections
            if cos.dtype != query.dtype:
                cos, sin = cos.to(query.dtype), sin.to(query.dtype)
            given.cos, given.sin, given.rotary_size = cos.data_ptr(), sin.data_ptr(), cos.shape[-1]
            ends = (-1, -1) if sections is None else (sections[0], sections[0] + sections[1])
            given.plane_stride, given.section_ends = num_tokens * cos.shape[-1], ends
        quantized = (torch.int8,) if cache.key.dtype == torch.int8 else ()
        launch(
            "attention", (query.dtype, *quantized), given,
            query, key, value, cos, sin, cache.key, cache.value, slots, tables, lens, starts, visible,
            span_starts, sinks, out,
        )  # fmt: skip
        return out
