"""Which tokens each token sees in a transformers model, as its own masks say: found by running it with a recorder.

Knows transformers' attention and mask functions; knows no model family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from corellm.errors import ContractError
from corellm.modelling.decoder_attention import attention_configs, set_attention

_NAME = "corellm_visibility"


class _Recorder:
    """Gets what layers pass to attention."""

    def __init__(self) -> None:
        self.seen: dict[int, Tensor] = {}

    def note(self, layer: int, num_tokens: int, mask: Any, window: int | None, device: torch.device) -> None:
        """Note what a layer's tokens see: by its mask, else those up to themselves, within a window."""
        if mask is None:
            positions = torch.arange(num_tokens, device=device)
            seen = positions <= positions[:, None]
            self.seen[layer] = seen if window is None else seen & (positions > positions[:, None] - window)
        else:
            mask = mask[0, 0, -num_tokens:, -num_tokens:]
            self.seen[layer] = mask if mask.dtype == torch.bool else mask >= 0  # floating ones are added to scores


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
    recorder = _Recorder()

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *_: Any, **more: Any
    ) -> tuple[Tensor, None]:
        layer: Any = getattr(module, "layer_idx", None)
        if layer is not None:
            own = more.get("sliding_window")
            recorder.note(layer, query.shape[2], attention_mask, own and (window or own), query.device)
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None

    with _attending(model, decoder, attend, window):
        model(**inputs, use_cache=False)
    if not recorder.seen:
        raise ContractError(f"{type(decoder).__name__} does not attend through transformers' AttentionInterface")
    return recorder.seen


def _make_mask(**arguments: Any) -> Tensor | None:
    """Make the mask that transformers makes for torch's attention; also a causal one, which that can do without."""
    from transformers.masking_utils import sdpa_mask

    mask: Tensor | None = sdpa_mask(**{**arguments, "allow_is_causal_skip": False})
    return mask


@contextmanager
def _attending(model: nn.Module, decoder: nn.Module, attend: Callable[..., Any], window: int | None) -> Iterator[None]:
    """Inside the block, let the layers of a text decoder call `attend`, with their masks as tensors."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(_NAME, attend)
    AttentionMaskInterface.register(_NAME, _make_mask)
    stated: Any = getattr(model, "config", None)
    found = [*attention_configs(decoder), *([] if stated is None else [stated.get_text_config()])]
    configs = {id(config): config for config in found}
    before = {key: (config._attn_implementation, _window_of(config)) for key, config in configs.items()}
    try:
        for key, config in configs.items():
            set_attention(config, _NAME)
            if window is not None and before[key][1] is not None:
                config.sliding_window = window
        yield
    finally:
        for key, config in configs.items():
            name, own = before[key]
            set_attention(config, name)
            if own is not None:
                config.sliding_window = own


def _window_of(config: Any) -> int | None:
    window: int | None = getattr(config, "sliding_window", None)
    return window
