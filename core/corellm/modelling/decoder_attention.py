"""Which attention a text decoder calls: set in its configurations, and in no encoder's.

Knows how transformers' modules look their attention up; knows no attention.
"""

from __future__ import annotations

from typing import Any

from torch import nn


def attention_configs(decoder: nn.Module) -> list[Any]:
    """Return the configurations by which a text decoder attends: its own, and its attention layers'.

    Not those of encoders inside it, as of a model that embeds items in its decoder.
    """
    layers = (module for module in decoder.modules() if hasattr(module, "layer_idx"))
    found: list[Any] = [getattr(module, "config", None) for module in (decoder, *layers)]
    return list({id(config): config for config in found if config is not None}.values())


def set_attention(config: Any, name: str) -> None:
    """Set the attention of one configuration; of a bare name, transformers makes that of its parts, too."""
    config._attn_implementation = {"": name} if getattr(config, "sub_configs", None) else name
