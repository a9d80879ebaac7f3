"""Mllama's text model behind the arguments that the engine gives a decoder which attends to states of items.

Some of its layers attend to states alone, the others to text. Knows transformers' modules; knows neither images nor
requests.
"""

from __future__ import annotations

from inspect import signature
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn


class Decoder(nn.Module):
    """The text model.

    Args:
        text_model: transformers' `MllamaTextModel`.
    """

    def __init__(self, text_model: nn.Module) -> None:
        super().__init__()
        self.text_model = text_model
        self.config: Any = text_model.config
        accepted = signature(text_model.forward).parameters
        self._cache_name = next(name for name in ("cache", "past_key_values") if name in accepted)

    def forward(
        self,
        inputs_embeds: Tensor,
        encoder_hidden_states: Tensor | None = None,
        sees_states: Tensor | None = None,
        cache: Any = None,
        **more: Any,
    ) -> Any:
        """Return the text model's output; without states its layers that attend to them are skipped.

        Args:
            inputs_embeds: `[1, num_tokens, hidden_size]`.
            encoder_hidden_states: `[1, num_new_states, hidden_size]`.
            sees_states: `[num_tokens]` bool, which tokens see states.
            cache: an `EncoderDecoderCache`, for states.
            more: further arguments of the text model.
        """
        if sees_states is None or encoder_hidden_states is None:
            return self.text_model(inputs_embeds=inputs_embeds, **more)
        has_new = bool(encoder_hidden_states.shape[1])
        return self.text_model(
            inputs_embeds=inputs_embeds,
            cross_attention_states=encoder_hidden_states if has_new else None,
            full_text_row_masked_out_mask=sees_states[None, None, :, None].to(inputs_embeds.dtype),
            **{self._cache_name: _LayersCache(cache, self.config)},
            **more,
        )


class _LayersCache:
    """A cache by layer, of text or of states, as the text model takes it."""

    def __init__(self, cache: Any, config: Any) -> None:
        self._text, self._states = cache.self_attention_cache, cache.cross_attention_cache
        self._of_states = frozenset(config.cross_attention_layers)
        cached = self._states.layers[min(self._of_states)]
        layer = SimpleNamespace(is_initialized=True, keys=cached.keys, values=cached.values)
        self.layers = [layer] * config.num_hidden_layers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._text, name)  # what masks are made by

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *more: Any, **named: Any) -> tuple[Tensor, Tensor]:
        """Return what a layer attends to, given its keys and values of the step's tokens or new states."""
        cache = self._states if layer_idx in self._of_states else self._text
        attended: tuple[Tensor, Tensor] = cache.update(key, value, layer_idx, *more, **named)
        return attended

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return that there are states: transformers 5.17 asks for no more, as positions are given."""
        return 1
