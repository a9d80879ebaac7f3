"""The interface of attention backends. Knows nothing of models, requests or schedules.

A step's batch is flat: the query tokens of all sequences one after another, `[num_tokens, ...]`, single-token decodes
first. Keys and values of earlier tokens are read through block tables; the step's own are written first, so that a
sequence attends to itself through the cache alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from corellm.attention.distance_bias import DistanceBias
from corellm.attention.graph import Graph
from corellm.errors import ContractError


@dataclass(frozen=True)
class AttentionMetadata:
    """Where each sequence of a flat batch lies, in the batch and in the cache; the same for all layers of a step."""

    num_decodes: int
    """Number of decode sequences (one query token each, outside of `span_starts`); they come first."""
    query_lens: list[int]
    """Query tokens per sequence; their sum is `num_tokens`."""
    seq_lens: list[int]
    """Tokens per sequence in the cache after this step's writes: the context a sequence's last query sees."""
    query_start_loc: Tensor
    """`[num_seqs + 1]` int32: sequence `i` has the query tokens `query_start_loc[i]:query_start_loc[i + 1]`."""
    seq_lens_tensor: Tensor
    """`[num_seqs]` int32 or int64: `seq_lens` on the device."""
    block_tables: Tensor
    """`[num_seqs, max_blocks]` int64: rows padded with the null block 0."""
    slot_mapping: Tensor
    """`[num_tokens]` int64: the slot `block * block_size + offset` each token's key and value go to."""
    visible_lens: Tensor | None = None
    """`[num_tokens]` int32: how many of its sequence's leading tokens each query sees, at least those up to itself and
    at most the sequence's `seq_lens`; None where each sees those up to itself. A window cuts them from the front."""
    span_starts: Tensor | None = None
    """`[num_tokens]` int32: a token of its sequence up to each query, from which on no window cuts what the query sees:
    the first of its span, or itself. None where a window cuts all. Only with `visible_lens`."""

    def seen_by(self, queries: slice) -> tuple[Tensor | None, Tensor | None]:
        """Return `visible_lens` and `span_starts` of these queries."""
        visible_lens, span_starts = (None if t is None else t[queries] for t in (self.visible_lens, self.span_starts))
        return visible_lens, span_starts

    def check_tokens(self, call: AttentionCall) -> None:
        """Check that a layer got every token of the step; kernels would read and write beyond fewer.

        Raises:
            ContractError: it did not.
        """
        if not len(call.query) == len(call.key) == len(call.value) == len(self.slot_mapping):
            raise _too_few(call, len(self.slot_mapping))


def _too_few(call: AttentionCall, num_tokens: int) -> ContractError:
    given = (("queries", call.query), ("keys", call.key), ("values", call.value))
    name, tensor = next((name, tensor) for name, tensor in given if len(tensor) != num_tokens)
    return ContractError(
        f"attention gets {name} of {len(tensor)} tokens in a step of {num_tokens}: a text decoder must give each layer "
        "all tokens"
    )


@dataclass(frozen=True)
class CrossAttentionMetadata:
    """Which states of encoders each sequence of a flat batch attends to; the same for all layers of a step."""

    query_lens: list[int]
    """Query tokens per sequence."""
    query_start_loc: Tensor
    """`[num_seqs + 1]` int32, as in `AttentionMetadata`."""
    num_states: list[int]
    """States per sequence; each query of the sequence sees all of them, unless `state_ranges` says otherwise. A
    sequence may have none: its queries get zeros."""
    num_states_tensor: Tensor
    """`[num_seqs]` int64: the same on the device."""
    block_tables: Tensor
    """`[num_seqs, max_blocks]` int64: blocks of the states; rows padded with the null block 0."""
    state_ranges: Tensor | None = None
    """`[2, num_tokens]` int32: each query sees its sequence's states from the first number up to the second, at least
    one where the sequence has any. None where all queries see all states."""


@dataclass(frozen=True)
class LayerCache:
    """The KV cache of one layer: two tensors `[num_blocks, block_size, num_kv_heads, head_size]`.

    Quantized caches (int8, float8_e4m3fn) have a factor per token and head, by which stored values are multiplied: two
    tensors `[num_blocks, block_size, num_kv_heads]`, float32.
    """

    key: Tensor
    value: Tensor
    key_scale: Tensor | None = None
    value_scale: Tensor | None = None

    @property
    def block_size(self) -> int:
        """Slots per block."""
        return self.key.shape[1]

    def write(self, key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
        """Store a step's keys and values, `[num_tokens, num_kv_heads, head_size]`, at their slots."""
        self.key.flatten(0, 1).index_copy_(0, slot_mapping, key)
        self.value.flatten(0, 1).index_copy_(0, slot_mapping, value)


@dataclass(frozen=True)
class Rotary:
    """Rotary positions to apply to queries and keys, as transformers' `rotate_half` does (neox style).

    The first `rotary_size` channels of each head are rotated; the others stay as they are.
    """

    cos: Tensor
    sin: Tensor
    """Both `[num_tokens, rotary_size]`, or `[3, num_tokens, rotary_size]` with `sections`."""
    sections: tuple[int, int, int] | None = None
    """Number of channels of each half for the positions in time, height and width, in M-RoPE."""

    def rotate(self, x: Tensor) -> Tensor:
        """Return `x`, `[num_tokens, heads, head_size]`, rotated."""
        cos, sin = self._of_token(self.cos), self._of_token(self.sin)
        turned, rest = torch.split(x, [cos.shape[-1], x.shape[-1] - cos.shape[-1]], dim=-1)
        first, second = turned.chunk(2, dim=-1)
        rotated = turned * cos + torch.cat([-second, first], dim=-1) * sin
        return torch.cat([rotated.to(x.dtype), rest], dim=-1)

    def _of_token(self, angles: Tensor) -> Tensor:
        """Return the angles of each token, `[num_tokens, 1, rotary_size]`."""
        if self.sections is None:
            return angles[:, None]
        parts = torch.split(angles, [*self.sections, *self.sections], dim=-1)
        return torch.cat([part[i % 3] for i, part in enumerate(parts)], dim=-1)[:, None]


@dataclass(slots=True)  # not frozen: one is made per layer and step, and setting frozen fields takes a microsecond
class AttentionCall:
    """What one layer asks for in one step. Backends do not assign its fields."""

    query: Tensor
    """`[num_tokens, num_heads, head_size]`; may be overwritten."""
    key: Tensor
    value: Tensor
    """Both `[num_tokens, num_kv_heads, head_size]`; `num_heads` is a multiple of `num_kv_heads`."""
    scale: float
    """Factor on the scores."""
    sliding_window: int | None = None
    """Each query sees at most this many tokens, itself included; None for all."""
    rotary: Rotary | None = None
    """To be applied to query and key first; None if they are rotated already."""
    softcap: float | None = None
    """Scores, scaled, become `softcap * tanh(score / softcap)`; None to leave them."""
    sinks: Tensor | None = None
    """`[num_heads]`: attention sinks, one more score in each head's softmax, neither scaled nor capped, of a key whose
    value is zero; None for none."""
    bias: DistanceBias | None = None
    """Added to scores by how far a key lies before its query; None for none."""

    def rotated(self) -> AttentionCall:
        """Return the call with rotary positions applied."""
        if self.rotary is None:
            return self
        query, key = self.rotary.rotate(self.query), self.rotary.rotate(self.key)
        return AttentionCall(
            query, key, self.value, self.scale, self.sliding_window, None, self.softcap, self.sinks, self.bias
        )


class AttentionBackend(ABC):
    """Computes attention of a flat batch over the paged cache: causal, but for `AttentionMetadata.visible_lens`.

    One instance serves all layers of a model and is called from one thread. It may keep scratch memory between calls.
    """

    name: ClassVar[str]
    priority: ClassVar[int] = 0
    """Among the backends that support a device and dtype, the highest is chosen."""
    capturable: ClassVar[bool] = False
    """Whether `forward` on decodes depends on tensors alone, so that a graph can capture it."""
    make_graph: Callable[[], Graph] | None = None
    """Makes graphs on devices other than NVIDIA GPUs, which have CUDA graphs; None if there are none."""
    rotates: ClassVar[bool] = False
    """Whether `forward` applies rotary positions itself; without, it never gets a call with `rotary`."""
    softcaps: ClassVar[bool] = False
    """Whether `forward` caps scores; without, it never gets a call with `softcap`: models that cap are refused."""
    two_way: ClassVar[bool] = False
    """Whether `forward` heeds `visible_lens` and `span_starts`; without, models that need them are refused."""
    sinks: ClassVar[bool] = False
    """Whether `forward` adds attention sinks; without, it never gets them: models that have them are refused."""
    biases: ClassVar[bool] = False
    """Whether `forward` adds biases of distances; without, it never gets them: models that have them are refused."""

    @classmethod
    @abstractmethod
    def unsupported(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        """Return why this backend cannot run on a device in a dtype; None if it can."""

    @classmethod
    def quantized_dtypes(cls, device: torch.device) -> tuple[torch.dtype, ...]:
        """Return the types of quantized caches that it supports on a device."""
        return ()

    @abstractmethod
    def forward(self, call: AttentionCall, cache: LayerCache, metadata: AttentionMetadata) -> Tensor:
        """Write the step's keys and values into the cache and attend.

        Args:
            call: what the layer asks for.
            cache: this layer's; written to.
            metadata: of this step.

        Returns:
            `[num_tokens, num_heads, head_size]`.
        """

    def cross_attend(self, call: AttentionCall, cache: LayerCache, metadata: CrossAttentionMetadata) -> Tensor | None:
        """Attend to the states of encoders, which are in the cache: not causal, and nothing is written.

        Args:
            call: with queries, scale and softcap; keys and values are empty, no window, no rotation.
            cache: this layer's, in the type of the queries.
            metadata: of this step.

        Returns:
            `[num_tokens, num_heads, head_size]`; None, the default, leaves it to plain torch.
        """
        return None
