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
    """A model up to its text decoder, or, where that merges items itself, up to the decoder's first layer.

    Shares the model's weights.

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
        self._model = _recording(model, name)
        first = next((f"{name}.0" for name, part in decoder.named_children() if isinstance(part, nn.ModuleList)), None)
        self._decoder = None if first is None else _recording(decoder, first)

    def __call__(self, **inputs: Any) -> DecoderInputs:
        """Return what the decoder is given for these arguments of the model's forward pass.

        Raises:
            ContractError: the forward pass does not come to the decoder, or gives it no embeddings.
        """
        given = self._given(self._model, {**inputs, "use_cache": False})
        embeds = given.pop("inputs_embeds", None)
        if embeds is None:
            embeds = self._merged(given)
            given = {name: value for name, value in given.items() if name != "input_ids" and name not in inputs}
        positions, mask = given.pop("position_ids", None), given.pop("attention_mask", None)
        more = {name: value for name, value in given.items() if value is not None and not isinstance(value, bool)}
        return DecoderInputs(embeds, positions, mask, more)

    def _merged(self, given: Mapping[str, Any]) -> Tensor:
        """Return what a decoder that merges items itself gives its first layer: embeddings, if it does not scale them.

        Raises:
            ContractError: it is not such a decoder.
        """
        embeds: Any = None
        if self._decoder is not None and given.get("input_ids") is not None:
            layer = self._given(self._decoder, given)
            embeds = layer.get("hidden_states", layer.get("0"))
        if not isinstance(embeds, Tensor):
            raise ContractError(f"{type(self._model).__name__} gives its text decoder no embeddings")
        return embeds

    @staticmethod
    def _given(module: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            module(**inputs)
        except _Reached as reached:
            return dict(reached.arguments)
        raise ContractError(f"{type(module).__name__} does not run its text decoder")


def _recording(module: nn.Module, path: str) -> nn.Module:
    """Return a copy of a module, with the same weights, whose part of this path ends the forward pass."""
    made = part = copy.copy(module)
    for child in path.split("."):
        part._modules = dict(part._modules)
        inner = copy.copy(part._modules[child])
        assert inner is not None
        part._modules[child] = part = inner
    part.forward = _record
    return made


def _record(*places: Any, **arguments: Any) -> None:
    raise _Reached({**{str(i): value for i, value in enumerate(places)}, **arguments})
