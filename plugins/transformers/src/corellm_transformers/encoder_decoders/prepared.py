"""States as a decoder's layers get them: what it does to an encoder's states before is done where an item is encoded.

A decoder may project states, or add positions to them. In a step it is given those of several prompts one behind
another, which would then have each other's positions. Knows transformers' decoders by what they take and give; knows no
model family.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from corellm_transformers.encoder_decoders.reading import STATES, arguments_given, layers_of


def prepared(decoder: nn.Module, states: Tensor) -> Tensor:
    """Return one item's states as a decoder gives them to its layers.

    Args:
        decoder: of an outline, or of a model to which `take_prepared` has done nothing.
        states: `[num_states, width]`, as the decoder is given them.

    Returns:
        `[num_states, hidden_size]`; `states` where the decoder gives its layers those.

    Raises:
        ContractError: it has no layers, or does not come to them.
    """
    layer = layers_of(decoder)[0]
    given = states[None].clone()  # some change it in place
    tokens = torch.zeros(1, 1, dtype=torch.long, device=states.device)
    arguments = arguments_given(decoder, layer, input_ids=tokens, **{STATES: given})
    places = dict(zip(map(str, range(len(arguments))), signature(layer.forward).parameters, strict=False))
    named = {places.get(name, name): value for name, value in arguments.items()}
    return states if named.get(STATES) is given and torch.equal(given[0], states) else named[STATES][0]


def take_prepared(decoder: nn.Module, width: int) -> None:
    """Have a decoder's layers get the states of a step as they are, which `prepared` has made.

    Args:
        decoder: the loaded one.
        width: of states as its encoder makes them.
    """
    step = _Step(next(decoder.parameters()).new_zeros(1, 1, width))
    decoder.register_forward_pre_hook(step.begin, with_kwargs=True)
    for layer in layers_of(decoder):
        layer.register_forward_pre_hook(step.give, with_kwargs=True)


class _Step:
    """The states of one step, on their way past what a decoder does to states.

    Args:
        blank: what the decoder gets instead, `[1, 1, width]`.
    """

    def __init__(self, blank: Tensor) -> None:
        self._blank, self._states = blank, blank

    def begin(self, _: nn.Module, places: Any, arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        """Keep the states that the decoder is called with."""
        if "paged" not in arguments:
            return None
        self._states = arguments[STATES]
        return places, {**arguments, STATES: self._blank.clone()}

    def give(self, layer: nn.Module, places: Any, arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        """Give a layer these states."""
        if "paged" not in arguments:
            return None
        bound = signature(layer.forward).bind(*places, **arguments)
        bound.arguments[STATES] = self._states
        return bound.args, bound.kwargs
