"""Runs one module that keeps a state, transformers' own code, on states that it is given; returns the new ones.

Knows transformers' Cache interface and its arguments; knows neither sequences nor where states are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, LinearAttentionLayer

from corellm.errors import ContractError
from corellm.transformers_releases import cache_argument

_MASK = "attention_mask"

StateKey = tuple[str, int]
"""`("conv" or "recurrent", index)`: a module may keep several of each."""


class Mixer:
    """A module that keeps a state.

    Args:
        name: in the decoder, for messages.
        module: takes the cache as an argument, and has a `layer_idx`.
        num_kept: states of each kind that its layer may keep.

    Attributes:
        by_token: whether a prompt goes on token by token, because the module cannot continue with several at once.

    Raises:
        ContractError: the module takes no cache, or has no `layer_idx`.
    """

    def __init__(self, name: str, module: nn.Module, num_kept: int) -> None:
        self.name, self.module, self.by_token = name, module, False
        self._forward, self._num_kept = module.forward, num_kept
        parameters = signature(module.forward).parameters
        self._names = names = [name for name, p in parameters.items() if p.kind is not Parameter.VAR_KEYWORD]
        self._hidden = names[0]
        takes = cache_argument(module)
        index: Any = getattr(module, "layer_idx", None)
        if takes is None or not isinstance(index, int):
            raise ContractError(f"{self} keeps a state, but takes no cache or has no layer_idx")
        self._takes, self._index = takes, index
        self._cache = Cache(layers=[_States(num_kept)] * (index + 1))
        self._keys: list[StateKey] = []

    def __str__(self) -> str:
        return f"{type(self.module).__name__} ({self.name})"

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """Return the hidden states of a call of the module, and what it gets for every sequence alike.

        Raises:
            ContractError: it gets other tensors, which would have to be split by sequences, too.
        """
        given = {**dict(zip(self._names, args, strict=False)), **kwargs}
        hidden: Tensor = given[self._hidden]
        own = (self._hidden, self._takes)
        shared = {name: given[name] for name in self._names if given.get(name) is not None and name not in own}
        split = sorted(name for name, value in shared.items() if isinstance(value, Tensor) or name == _MASK)
        if split:
            raise ContractError(f"{self} takes {', '.join(split)} beside hidden states, which corellm does not split")
        return hidden, shared

    def run(
        self, hidden: Tensor, states: Sequence[Tensor] | None, shared: Mapping[str, Any] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the module's output `[batch, num_tokens, width]` and its new states.

        Args:
            hidden: `[batch, num_tokens, width]`.
            states: `[batch, ...]` each, as of the last run, and changed by this one; None where sequences begin.
            shared: further arguments.
        """
        if states is None or hidden.shape[1] == 1 or not self.by_token:
            return self._run(hidden, states, shared or {})
        outputs = []
        for token in torch.split(hidden, 1, dim=1):
            output, states = self._run(token, states, shared or {})
            outputs.append(output)
        return torch.cat(outputs, dim=1), list(states)

    def _run(
        self, hidden: Tensor, states: Sequence[Tensor] | None, shared: Mapping[str, Any]
    ) -> tuple[Tensor, list[Tensor]]:
        layer = _States(self._num_kept)
        if states is not None:
            layer.restore(dict(zip(self._keys, states, strict=True)))
        self._cache.layers[self._index] = layer
        output = self._forward(**{self._hidden: hidden, self._takes: self._cache, **shared})
        if not isinstance(output, Tensor) or output.shape[:2] != hidden.shape[:2]:
            raise ContractError(f"{self} does not return one tensor with a row for every token")
        new = layer.kept()
        self._keys = self._keys or list(new)
        return output, [new[key] for key in self._keys]


class _States(LinearAttentionLayer):  # type: ignore[misc]  # transformers has no types
    """The states of one call's sequences: transformers' layer, but without addresses that stay the same."""

    def restore(self, states: Mapping[StateKey, Tensor]) -> None:
        """Take the states of sequences that have begun."""
        for (kind, index), state in states.items():
            getattr(self, f"{kind}_states")[index] = state
            getattr(self, f"is_{kind}_states_initialized")[index] = True
            if kind == "conv":
                self.conv_kernel_size[index] = state.shape[-1]
        self.has_previous_state = dict.fromkeys(range(self.number_of_states), True)

    def kept(self) -> dict[StateKey, Tensor]:
        """Return the states as they are now."""
        by_kind = {"conv": self.conv_states, "recurrent": self.recurrent_states}
        return {(kind, i): state for kind, of in by_kind.items() for i, state in of.items() if state is not None}

    def update_conv_state(
        self, conv_states: Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **_: Any
    ) -> Tensor:
        """Keep the last inputs of a convolution, `[batch, channels, kernel]`; return them with those before.

        Args:
            conv_states: `[batch, channels, num_tokens]`.
            state_idx: which state.
            conv_kernel_size: how many to keep; None for as many as are given first.
        """
        before = self.conv_states[state_idx]
        if before is None:
            width = conv_states.shape[-1] if conv_kernel_size is None else conv_kernel_size
            full = nn.functional.pad(conv_states, (max(0, width - conv_states.shape[-1]), 0))
        else:
            width, full = before.shape[-1], torch.cat([before, conv_states], dim=-1)
        self.conv_states[state_idx], self.conv_kernel_size[state_idx] = full[..., -width:], width
        self.is_conv_states_initialized[state_idx] = self.has_previous_state[state_idx] = True
        return full

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **_: Any) -> Tensor:
        """Keep a state, `[batch, ...]`, in the type of the first one; return it."""
        before = self.recurrent_states[state_idx]
        new = recurrent_states if before is None else recurrent_states.to(before.dtype)
        self.recurrent_states[state_idx] = new
        self.is_recurrent_states_initialized[state_idx] = True
        return new
