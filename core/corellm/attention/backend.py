"""What an attention backend is given and must do. Knows nothing of models, requests or schedules.

A step's batch is flat: the query tokens of all sequences one after another, `[num_tokens, ...]`, single-token decodes
first. Keys and values of earlier tokens are read through block tables; the step's own are written first, so that a
sequence attends to itself through the cache alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class AttentionMetadata:
    """Where each sequence of a flat batch lies, in the batch and in the cache. Same for all layers of a step."""

    num_decodes: int
    """The first so many sequences have exactly one query token."""
    query_lens: list[int]
    """Query tokens per sequence; their sum is `num_tokens`."""
    seq_lens: list[int]
    """Tokens per sequence in the cache after this step's writes: the context a sequence's last query sees."""
    query_start_loc: Tensor
    """`[num_seqs + 1]` int32: sequence `i` has the query tokens `query_start_loc[i]:query_start_loc[i + 1]`."""
    seq_lens_tensor: Tensor
    """`[num_seqs]` int32: `seq_lens` on the device."""
    block_tables: Tensor
    """`[num_seqs, max_blocks]` int64: rows padded with the null block 0."""
    slot_mapping: Tensor
    """`[num_tokens]` int64: the slot `block * block_size + offset` each token's key and value go to."""


@dataclass(frozen=True)
class LayerCache:
    """The KV cache of one layer: two tensors `[num_blocks, block_size, num_kv_heads, head_size]`."""

    key: Tensor
    value: Tensor

    @property
    def block_size(self) -> int:
        """Slots per block."""
        return self.key.shape[1]

    def write(self, key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
        """Store a step's keys and values, `[num_tokens, num_kv_heads, head_size]`, at their slots."""
        self.key.flatten(0, 1).index_copy_(0, slot_mapping, key)
        self.value.flatten(0, 1).index_copy_(0, slot_mapping, value)


class AttentionBackend(ABC):
    """Computes causal attention of a flat batch over the paged cache.

    One instance serves all layers of a model and is called from one thread. It may keep scratch memory between calls.
    """

    name: ClassVar[str]
    priority: ClassVar[int] = 0
    """Among the backends that support a device and dtype, the highest is chosen."""

    @classmethod
    @abstractmethod
    def unsupported(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        """Say why this backend cannot run there; None if it can."""

    @abstractmethod
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: LayerCache,
        metadata: AttentionMetadata,
        *,
        scale: float,
        sliding_window: int | None = None,
    ) -> Tensor:
        """Write the step's keys and values into the cache and attend.

        Args:
            query: `[num_tokens, num_heads, head_size]`, positions already encoded.
            key, value: `[num_tokens, num_kv_heads, head_size]`; `num_heads` is a multiple of `num_kv_heads`.
            cache: this layer's; written to.
            metadata: of this step.
            scale: factor on the scores.
            sliding_window: each query sees at most this many tokens, itself included; None for all.

        Returns:
            `[num_tokens, num_heads, head_size]`.
        """
