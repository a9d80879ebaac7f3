"""Connects transformers' modelling code to the attention backends: the attention function `corellm_paged`.

The text decoder runs with `attn_implementation="corellm_paged"`, which is registered for attention but not for masks,
so that transformers builds none. The model's forward pass gets an extra keyword argument `paged` and passes it to every
attention layer, which calls `attend` on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from corellm.attention.backend import AttentionBackend, AttentionCall, AttentionMetadata, LayerCache, Rotary
from corellm.errors import ContractError

ATTENTION_NAME = "corellm_paged"

_UNSUPPORTED = ("s_aux", "position_bias", "head_mask")
"""Arguments of attention functions that change the result and that no backend implements."""


class PagedStep(Protocol):
    """What a forward pass gets as `paged`."""

    def attend(self, layer: int, call: AttentionCall) -> Tensor:
        """Return the attention of one layer, `[num_tokens, num_heads, head_size]`."""
        ...


@dataclass(frozen=True)
class PagedAttention:
    """One step over the paged cache."""

    backend: AttentionBackend
    caches: dict[int, LayerCache]
    metadata: AttentionMetadata

    def attend(self, layer: int, call: AttentionCall) -> Tensor:
        """See `PagedStep`."""
        call = call if self.backend.rotates else call.rotated()
        return self.backend.forward(call, self.caches[layer], self.metadata)


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    rotary: Rotary | None = None,
    paged: PagedStep | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend for a transformers layer: `query [1, num_heads, num_tokens, head_size]` and so on.

    Fused layers leave rotary positions to the backend, in `rotary`.

    Returns:
        `[1, num_tokens, num_heads, head_size]` and no weights.
    """
    step = _checked(module, paged, attention_mask, kwargs)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    query, key, value = query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1)
    layer: int = module.layer_idx  # type: ignore[assignment]  # every transformers attention layer has one
    return step.attend(layer, AttentionCall(query, key, value, scale, sliding_window, rotary))[None], None


def _checked(
    module: nn.Module, paged: PagedStep | None, attention_mask: Tensor | None, kwargs: dict[str, Any]
) -> PagedStep:
    """Return the step, if the layer asks for nothing that no backend computes.

    Raises:
        ContractError: it does, or its decoder did not pass the step on.
    """
    if paged is None:
        raise ContractError(
            f"{type(module).__name__} was run without the engine's `paged` argument: the text decoder must pass its "
            f"keyword arguments on to its attention layers"
        )
    if attention_mask is not None:
        raise ContractError(f"{type(module).__name__} built an attention mask; paged attention is causal by itself")
    for name in _UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise ContractError(f"{type(module).__name__} uses {name}, which paged attention does not compute")
    if kwargs.get("softcap"):
        raise ContractError(f"{type(module).__name__} caps attention scores, which paged attention does not compute")
    return paged


def register_attention() -> None:
    """Make `corellm_paged` known to transformers. May be called again."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, paged_attention)
