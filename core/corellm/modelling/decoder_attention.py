"""Which attention a text decoder calls: set in its configurations, and in no encoder's; or what stands in for it.

Knows how transformers' modules look their attention up; knows no attention.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn

_record: ContextVar[Callable[..., None]] = ContextVar("_record")


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


@contextmanager
def recorded_attention(
    name: str,
    configs: Collection[Any],
    record: Callable[..., None],
    make_mask: Callable[..., Any],
    *,
    window: int | None = None,
) -> Iterator[None]:
    """Inside the block, let layers call `record` in place of attention, which is then zero.

    Args:
        name: under which transformers finds the recorder and `make_mask`; one for each `make_mask`.
        configs: those by which the layers attend.
        record: gets what a layer passes: itself, query, key and value `[1, num_heads, num_tokens, head_size]`, a mask,
            and more by name.
        make_mask: takes the place of transformers' functions that make masks.
        window: that of layers which have one; None for their own.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, _no_attention)
    AttentionMaskInterface.register(name, make_mask)
    before = [(config, config._attn_implementation, getattr(config, "sliding_window", None)) for config in configs]
    token = _record.set(record)
    try:
        for config, _, own in before:
            set_attention(config, name)
            if own is not None and window is not None:
                config.sliding_window = window
        yield
    finally:
        _record.reset(token)
        for config, attention, own in before:
            set_attention(config, attention)
            if own is not None:
                config.sliding_window = own


def _no_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, scaling: Any = None, **more: Any
) -> tuple[Tensor, None]:
    _record.get()(module, query, key, value, attention_mask, **more)
    return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None
