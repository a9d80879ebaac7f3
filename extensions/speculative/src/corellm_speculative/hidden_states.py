"""The model's hidden states of the step that ran last, for a head that reads them: at fixed addresses, as captured
steps need them.

Knows the decoder's modules; knows neither sequences nor heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from corellm.errors import ConfigError


class HiddenStates:
    """Notes hidden states as the decoder runs.

    Args:
        decoder: of the model.
        layers: whose inputs are noted, one beside the other; None for what the decoder returns.
        width: of a hidden state.
        most_rows: rows of a step. A step at load may have more; then room is made for them before steps are captured.
        dtype, device: of the model.

    Attributes:
        is_output: whether what the decoder returns is noted.

    Raises:
        ConfigError: the decoder has no such layers.
    """

    def __init__(
        self,
        decoder: nn.Module,
        layers: Sequence[int] | None,
        width: int,
        most_rows: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.is_output = layers is None
        num_kept = 1 if layers is None else len(layers)
        self._width, self._rows = width, torch.zeros(most_rows, num_kept * width, dtype=dtype, device=device)
        if layers is None:
            decoder.register_forward_hook(self._note_output)
            return
        found = decoder_layers(decoder)
        for place, index in enumerate(layers):
            if not 0 <= index < len(found):
                raise ConfigError(
                    f"speculative_config: the head reads the inputs of layers {', '.join(map(str, layers))}, and "
                    f"{type(decoder).__name__} has {len(found)}; take a head for this model"
                )
            found[index].register_forward_pre_hook(partial(self._note_input, place), with_kwargs=True)

    def first(self, num_rows: int) -> Tensor:
        """Return a copy of the first rows, `[num_rows, several hidden states]`."""
        return self._rows[:num_rows].clone()

    def _note_input(self, place: int, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._note(place, args[0] if args else kwargs["hidden_states"])

    def _note_output(self, decoder: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._note(0, output[0])

    def _note(self, place: int, hidden: Tensor) -> None:
        rows = hidden[0]
        if len(rows) > len(self._rows):
            self._rows = self._rows.new_zeros(len(rows), self._rows.shape[1])
        self._rows[: len(rows), place * self._width : (place + 1) * self._width].copy_(rows)


def decoder_layers(decoder: nn.Module) -> nn.ModuleList:
    """Return a decoder's layers.

    Raises:
        ConfigError: it has no list of as many modules as its configuration says.
    """
    config: Any = getattr(decoder, "config", None)
    count = getattr(config, "num_hidden_layers", None)
    lists = (module for module in decoder.modules() if isinstance(module, nn.ModuleList))
    found = next((layers for layers in lists if len(layers) == count), None)
    if found is None:
        raise ConfigError(
            f"speculative_config: the layers of {type(decoder).__name__} are not found, whose hidden states a head of "
            "EAGLE-3 reads; take another method"
        )
    return found
