"""Attention that gets none of the engine's arguments from the decoder or layer around it: it gets them all the same.

Paged attention is told of a step by an argument of the decoder, which layers hand on to attention. Some hand it on to
the attention to their own tokens only; those that have attention in parts of their own, as T5's do, to none. Knows
transformers' decoders and their layers; knows no model family.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from corellm_transformers.encoder_decoders.reading import arguments_given, attentions_of, layers_of, with_forward

_NAME = "paged"


def hand_on(decoder: nn.Module) -> None:
    """Have a decoder's layers hand the engine's argument on to their attention to states, where they do not.

    Raises:
        ContractError: a layer does not run as decoder layers do.
    """
    width = decoder.get_input_embeddings().weight.shape[-1]  # type: ignore[operator]
    for layer in layers_of(decoder):
        attentions = attentions_of(layer)
        if not any(part in attentions for part in layer.children()):
            _connect(decoder, attentions)
        elif len(attentions) == 2 and not _hands_on(layer, attentions[0], attentions[1], width):
            _connect(layer, attentions[1:])


@torch.inference_mode()
def _hands_on(layer: nn.Module, to_own: nn.Module, to_states: nn.Module, width: int) -> bool:
    """Whether a layer gives the argument to its second attention; the first is left out."""
    some = next(layer.parameters())
    hidden = torch.zeros(1, 1, width, dtype=some.dtype, device=some.device)
    without = with_forward(layer, to_own, lambda *_, **__: (hidden, None))
    named = {_NAME: True, "hidden_states": hidden, "encoder_hidden_states": hidden}
    return _NAME in arguments_given(without, to_states, **named)


def _connect(owner: nn.Module, attentions: Sequence[nn.Module]) -> None:
    """Give attentions the argument that their layer or decoder gets."""
    noted: dict[str, Any] = {}

    def note(_: nn.Module, places: tuple[Any, ...], arguments: dict[str, Any]) -> None:
        noted[_NAME] = arguments.get(_NAME)

    def add(_: nn.Module, places: tuple[Any, ...], arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return places, {**arguments, _NAME: noted.get(_NAME)}

    owner.register_forward_pre_hook(note, with_kwargs=True)
    for attention in attentions:
        attention.register_forward_pre_hook(add, with_kwargs=True)
