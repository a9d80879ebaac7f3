"""A model whose inner model is skipped: its own forward pass then does only what comes after the hidden states.

Knows transformers' modules; knows neither output layers nor heads.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class _Output:
    """What the inner model returns, by position and by name: hidden states, and what its pooler makes of them."""

    def __init__(self, hidden_states: Tensor, pooler: Any) -> None:
        self.last_hidden_state = hidden_states
        self.pooler_output = None if pooler is None else pooler(hidden_states)

    def __getitem__(self, index: Any) -> Any:
        known = (self.last_hidden_state, self.pooler_output)
        return tuple(item for item in known if item is not None)[index]

    def __getattr__(self, name: str) -> None:
        return None


class GivenHidden:
    """A module without the inner model: called in its place, it returns the embeddings as hidden states.

    Args:
        module: the original; all attributes but those on the way to the inner model are its own.
        path: names of children from `module` to the inner model.
    """

    def __init__(self, module: nn.Module, *path: str) -> None:
        self._module, self._path = module, path

    def __getattr__(self, name: str) -> Any:
        child = getattr(self._module, name)
        return GivenHidden(child, *self._path[1:]) if name in self._path[:1] else child

    def __call__(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _Output:
        return _Output(inputs_embeds, getattr(self._module, "pooler", None))
