"""What a model gives its text decoder: found by running the model's own forward pass with a recorder in its place.

The forward pass encodes the items, merges them into the text's embeddings, makes positions and masks, and would then
run the decoder: there it ends. Knows transformers' modules; knows no model family.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from corellm.errors import ContractError


@dataclass(frozen=True)
class DecoderInputs:
    """The arguments of one call of a text decoder."""

    embeds: Tensor
    """`[1, num_tokens, hidden_size]`, items merged."""
    positions: Tensor | None
    """`[1, num_tokens]` or `[axes, 1, num_tokens]`; None where the decoder counts."""
    mask: Any
    """`attention_mask`: a tensor, or tensors by type of layer, or None."""
    more: Mapping[str, Any]
    """Further arguments, without those that are None or switches."""


class _Reached(BaseException):
    """The forward pass has come to the decoder. No error: nothing on the way should catch it."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.arguments = arguments


class Front:
    """A model up to its text decoder. Shares the model's weights.

    Args:
        model: the whole model.
        decoder: the text decoder inside it.

    Raises:
        ContractError: `decoder` is not inside `model`.
    """

    def __init__(self, model: nn.Module, decoder: nn.Module) -> None:
        name = next((name for name, module in model.named_modules() if module is decoder), None)
        if not name:
            raise ContractError(f"{type(decoder).__name__} is not a part of {type(model).__name__}")
        self._model = copy.copy(model)
        module = self._model
        for child in name.split("."):
            module._modules = dict(module._modules)
            inner = copy.copy(module._modules[child])
            assert inner is not None
            module._modules[child] = module = inner
        module.forward = self._record

    @staticmethod
    def _record(*_: Any, **arguments: Any) -> None:
        raise _Reached(arguments)

    def __call__(self, **inputs: Any) -> DecoderInputs:
        """Return what the decoder is given for these arguments of the model's forward pass.

        Raises:
            ContractError: the forward pass does not come to the decoder, or gives it no embeddings.
        """
        try:
            self._model(**inputs, use_cache=False)
        except _Reached as reached:
            given = dict(reached.arguments)
        else:
            raise ContractError(f"{type(self._model).__name__} does not run its text decoder")
        embeds = given.pop("inputs_embeds", None)
        if embeds is None:
            raise ContractError(f"{type(self._model).__name__} gives its text decoder no embeddings")
        positions, mask = given.pop("position_ids", None), given.pop("attention_mask", None)
        more = {name: value for name, value in given.items() if value is not None and not isinstance(value, bool)}
        return DecoderInputs(embeds, positions, mask, more)
