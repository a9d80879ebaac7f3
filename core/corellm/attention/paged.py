"""Connects transformers' modelling code to the attention backends: the attention function `corellm_paged`.

The text decoder runs with `attn_implementation="corellm_paged"`, which is registered for attention but not for masks,
so that transformers builds none. The model's forward pass gets an extra keyword argument `paged` and passes it to every
attention layer, which calls `attend` on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from corellm.attention.backend import AttentionBackend, AttentionCall, AttentionMetadata, LayerCache, Rotary
from corellm.errors import ContractError

ATTENTION_NAME = "corellm_paged"


class AttentionElsewhere(Protocol):
    """How layers attend to what is not among their sequences' tokens: those that are called with its `keys`."""

    keys: Tensor
    """Stands for the keys and values of such a layer."""

    def attend(self, layer: int, query: Tensor, scale: float, softcap: float | None) -> Tensor:
        """Return the attention of queries `[num_tokens, num_heads, head_size]`, in the same form."""
        ...


class PagedStep(Protocol):
    """What a forward pass gets as `paged`."""

    elsewhere: AttentionElsewhere | None = None

    def attend(self, layer: int, call: AttentionCall) -> Tensor:
        """Return the attention of one layer, `[num_tokens, num_heads, head_size]`."""
        ...

    def needed_after(self, layer: int) -> Tensor | None:
        """Return which tokens' hidden states are needed behind one layer, `[num_needed]`; None for all."""
        return None


@dataclass(frozen=True)
class PagedAttention(PagedStep):
    """One step over the paged cache."""

    backend: AttentionBackend
    caches: dict[int, LayerCache]
    """By layer, in the order in which they attend."""
    metadata: AttentionMetadata
    outputs: Tensor | None = None
    """`[num_outputs]`: the tokens whose hidden states are used, None for all. The last layer may skip the others."""
    of_layers: Mapping[int, AttentionMetadata] = field(default_factory=dict)
    """What layers are told instead of `metadata`; one object for all that are told the same, as backends plan by it."""
    elsewhere: AttentionElsewhere | None = None

    def attend(self, layer: int, call: AttentionCall) -> Tensor:
        """See `PagedStep`."""
        metadata = self.of_layers.get(layer, self.metadata)
        metadata.check_tokens(call)
        if call.rotary is not None and not self.backend.rotates:
            call = call.rotated()
        return self.backend.forward(call, self.caches[layer], metadata)

    def needed_after(self, layer: int) -> Tensor | None:
        """See `PagedStep`."""
        return self.outputs if layer == next(reversed(self.caches)) else None


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    rotary: Rotary | None = None,
    paged: PagedStep | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Return attention of a transformers layer, `[1, num_tokens, num_heads, head_size]`, and no weights.

    The tensors are `[1, num_heads, num_tokens, head_size]`; `s_aux` are attention sinks. Fused layers leave rotation to
    the backend, in `rotary`. Of `more` a `DistanceBias` matters: layers for which more would are refused at load.
    """
    if paged is None or attention_mask is not None:
        raise not_paged(module) if paged is None else _masked(module)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer: int = module.layer_idx  # type: ignore[assignment]  # every transformers attention layer has one
    elsewhere = paged.elsewhere
    if elsewhere is not None and key is elsewhere.keys:
        return elsewhere.attend(layer, query[0].transpose(0, 1), scale, softcap)[None], None
    query, key, value = query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1)
    call = AttentionCall(query, key, value, scale, sliding_window, rotary, softcap, s_aux, more.get("position_bias"))
    return paged.attend(layer, call)[None], None


def _masked(module: nn.Module) -> ContractError:
    """Return the error that a layer's decoder made a mask."""
    return ContractError(f"{type(module).__name__} built an attention mask; paged attention is causal by itself")


def not_paged(module: nn.Module) -> ContractError:
    """Return the error that an attention layer was run outside a step."""
    return ContractError(
        f"{type(module).__name__} was run without the engine's `paged` argument: the text decoder must pass its "
        f"keyword arguments on to its attention layers; an encoder's need a configuration with another attention"
    )


def register_attention() -> None:
    """Make `corellm_paged` known to transformers. May be called again."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, paged_attention)
