"""Attention layers of decoders with one projection for queries, keys and values; the backend rotates.

Knows the children's names that transformers' decoders share. How a layer uses its projections is not read from its
attributes: layer and replacement run on a step that records their calls of attention.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from corellm.attention.backend import AttentionCall, Rotary
from corellm.attention.paged import ATTENTION_NAME, PagedStep, paged_attention
from corellm.plain_linears import JoinedOutputs
from corellm.transformers_releases import no_cache
from corellm_kernels.fusion.kernel_set import KernelSet
from corellm_kernels.fusion.layer_swap import (
    Linear,
    agree,
    draw,
    has_tensors,
    joined,
    joined_places,
    linears,
    outcome,
    swapped_for,
)
from corellm_kernels.fusion.norms import FusedRMSNorm

_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
_HEAD_NORMS = ("q_norm", "k_norm")
_NUM_TOKENS = 3
_SHARED = "shared_kv_states"
"""The argument by which transformers' layers hand keys and values on."""

_Seen: TypeAlias = tuple[list[tuple[Any, ...]], Any]
"""The recorded calls of attention, and the layer's output."""


class FusedAttention(nn.Module):
    """Paged attention behind one projection."""

    qkv_proj: nn.Module
    joined_linears: dict[str, JoinedOutputs]
    q_norm: FusedRMSNorm
    k_norm: FusedRMSNorm
    o_proj: Linear
    norms_heads: bool
    """Whether queries and keys are normed."""
    heads: list[tuple[int, int]]
    """`(number, size)` of the heads of queries, keys and values."""
    widths: list[int]
    """Channels of the projection for each of them."""
    scale: float
    window: int | None
    kernels: KernelSet
    positional: tuple[str, ...]
    """Names of the original's arguments after the first."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        """Return attention of `[1, num_tokens, width]`, and no weights; takes the original's arguments."""
        kwargs.update(zip(self.positional, args, strict=False))
        angles = kwargs.pop("position_embeddings")  # None in models without positions
        parts = self.qkv_proj(hidden_states).split(self.widths, dim=-1)
        query, key, value = (part.unflatten(-1, heads) for part, heads in zip(parts, self.heads, strict=True))
        if self.norms_heads:
            self.kernels.norm_heads(
                query[0], key[0], self.q_norm.weight, self.k_norm.weight, self.q_norm.norm_eps, self.k_norm.norm_eps
            )
        attended, _ = paged_attention(
            self, query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
            kwargs.pop("attention_mask", None), scaling=self.scale, sliding_window=self.window,
            rotary=None if angles is None else Rotary(*(part[0] for part in angles)), **kwargs,
        )  # fmt: skip
        return self.o_proj(attended.flatten(2)), None


@dataclass(frozen=True)
class _WatchedStep(PagedStep):
    """Records calls of attention and returns each token's own value: softmax would magnify rounding errors."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def attend(self, layer: int, call: AttentionCall) -> Tensor:
        """See `PagedStep`."""
        call = call.rotated()
        asked = (layer, call.scale, call.sliding_window, call.softcap, call.sinks)
        self.calls.append((*asked, call.query, call.key, call.value))
        return call.value.repeat_interleave(call.query.shape[1] // call.value.shape[1], dim=1)


def is_paged(module: Any) -> bool:
    """Whether a module is the attention of a decoder on the paged cache."""
    return getattr(getattr(module, "config", None), "_attn_implementation", None) == ATTENTION_NAME


def fused_attention(module: nn.Module, kernels: KernelSet) -> nn.Module | None:
    """Return the fused layer; None if the module is another kind of layer, or does more."""
    children = dict(module.named_children())
    projections, output = linears(module, _PROJECTIONS), linears(module, ("o_proj",))
    if not is_paged(module) or not projections or not output or has_tensors(module):
        return None
    if _SHARED in inspect.signature(module.forward).parameters:
        return None  # later layers may attend to its keys and values
    if children.keys() - {*_PROJECTIONS, *_HEAD_NORMS, "o_proj"}:
        return None
    like, norms = projections[0].weight, [children[name] for name in _HEAD_NORMS if name in children]
    if len(norms) == 1 or any(not isinstance(x, FusedRMSNorm) or x.weight.dtype != like.dtype for x in norms):
        return None

    watched = partial(_watched, like=like, width=projections[0].in_features)
    size = getattr(module, "head_dim", 0)
    # depending on the angles' shape, layers may rotate a part of each head or take several positions
    shapes = [(1, _NUM_TOKENS, size), (1, _NUM_TOKENS, size // 2), (3, 1, _NUM_TOKENS, size)]
    seen = {shape: theirs for shape in shapes if (theirs := watched(module, angles=shape)) is not None}
    made = _made_after(module, projections, seen[shapes[0]], kernels) if shapes[0] in seen else None
    if made is None or not all(agree(watched(made, angles=shape), theirs) for shape, theirs in seen.items()):
        return None
    return made


def _made_after(module: nn.Module, projections: list[Linear], seen: _Seen, kernels: KernelSet) -> FusedAttention | None:
    """Build the fused layer from the recorded call; None if it did not attend to the projections' outputs."""
    ((_, scale, window, _, _, *attended), *others), _ = seen
    widths, whole = [layer.out_features for layer in projections], joined(projections, kernels.join)
    if others or whole is None or widths != [x.shape[1:].numel() for x in attended]:
        return None
    made = swapped_for(module, FusedAttention)
    for name in _PROJECTIONS:
        delattr(made, name)
    made.qkv_proj, made.widths, made.heads = whole, widths, [(x.shape[1], x.shape[2]) for x in attended]
    made.joined_linears = joined_places(_PROJECTIONS, projections, "qkv_proj")
    made.scale, made.window, made.norms_heads = scale, window, hasattr(module, _HEAD_NORMS[0])
    made.kernels, made.positional = kernels, tuple(inspect.signature(module.forward).parameters)[1:]
    return made


def _watched(layer: nn.Module, *, like: Tensor, width: int, angles: tuple[int, ...]) -> _Seen | None:
    """Return a layer's calls of attention and its output for random tokens and angles; None if it cannot run so.

    The angles are no real rotation and the positions are far apart, so that other uses of them change the output.
    """
    step = _WatchedStep()
    given = outcome(
        lambda: layer(
            hidden_states=draw(like, 1, _NUM_TOKENS, width),
            position_embeddings=(draw(like, *angles, seed=1), draw(like, *angles, seed=2)),
            attention_mask=None,
            position_ids=torch.arange(_NUM_TOKENS, device=like.device)[None] * 1_000_000,
            use_cache=False,
            paged=step,
            **no_cache(layer),
        )
    )
    return (step.calls, given) if step.calls and given is not None else None
