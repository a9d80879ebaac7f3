"""Which tokens each token sees in a transformers model, as its own masks say: found by running it with a recorder.

Knows transformers' attention and mask functions; knows no model family.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from corellm.errors import ContractError
from corellm.modelling.decoder_attention import attention_configs, recorded_attention

_NAME = "corellm_visibility"


@torch.inference_mode()
def visible_tokens(
    model: nn.Module, decoder: nn.Module, inputs: Mapping[str, Any], *, window: int | None = None
) -> dict[int, Tensor]:
    """Return by layer which tokens of a prompt each of its tokens sees, `[num_tokens, num_tokens]` bool.

    Args:
        model: the whole model.
        decoder: its text decoder, which attends through transformers' `AttentionInterface`.
        inputs: arguments of its forward pass, for one prompt.
        window: that of layers which have one, instead of their own: a short prompt then shows what theirs cut.

    Raises:
        ContractError: its decoder attends in another way.
    """
    seen: dict[int, Tensor] = {}

    def record(layer: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **more: Any) -> None:
        index: Any = getattr(layer, "layer_idx", None)
        if index is not None:
            own = more.get("sliding_window")
            seen[index] = _seen(query.shape[2], mask, own and (window or own), query.device)

    stated: Any = getattr(model, "config", None)
    found = [*attention_configs(decoder), *([] if stated is None else [stated.get_text_config()])]
    configs = {id(config): config for config in found}.values()
    with recorded_attention(_NAME, configs, record, _make_mask, window=window):
        model(**inputs, use_cache=False)
    if not seen:
        raise ContractError(f"{type(decoder).__name__} does not attend through transformers' AttentionInterface")
    return seen


def _seen(num_tokens: int, mask: Any, window: int | None, device: torch.device) -> Tensor:
    """Return what a layer's tokens see: by its mask, else those up to themselves, within a window."""
    if mask is None:
        positions = torch.arange(num_tokens, device=device)
        seen = positions <= positions[:, None]
        return seen if window is None else seen & (positions > positions[:, None] - window)
    mask = mask[0, 0, -num_tokens:, -num_tokens:]
    by_mask: Tensor = mask if mask.dtype == torch.bool else mask >= 0  # floating ones are added to scores
    return by_mask


def _make_mask(**arguments: Any) -> Tensor | None:
    """Make the mask that transformers makes for torch's attention; also a causal one, which that can do without."""
    from transformers.masking_utils import sdpa_mask

    mask: Tensor | None = sdpa_mask(**{**arguments, "allow_is_causal_skip": False})
    return mask
