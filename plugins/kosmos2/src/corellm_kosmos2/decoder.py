"""Kosmos-2's text model behind the arguments that the engine gives a decoder.

Transformers' own forward pass makes a mask for every pair of tokens, and counts positions from the padding token's id.
Knows transformers' modules; knows neither images nor requests.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Decoder(nn.Module):
    """The text model: scaled embeddings, sinusoidal positions, its layers.

    Args:
        text_model: transformers' `Kosmos2TextTransformer`.
    """

    def __init__(self, text_model: Any) -> None:
        super().__init__()
        self.text_model = text_model
        self.config: Any = text_model.config
        positions = text_model.embed_positions
        self._first: int = positions.padding_idx + 1
        count = self._first + self.config.max_position_embeddings
        if len(positions.weights) < count:  # transformers makes more of them once a prompt has so many tokens
            positions.make_weights(count, positions.embedding_dim, positions.padding_idx)

    def forward(self, inputs_embeds: Tensor, position_ids: Tensor, **more: Any) -> tuple[Tensor]:
        """Return the hidden states, `[1, num_tokens, hidden_size]`.

        Args:
            inputs_embeds: `[1, num_tokens, hidden_size]`, not scaled.
            position_ids: `[1, num_tokens]`, from 0.
            more: further arguments of the layers.
        """
        positions = self.text_model.embed_positions.weights[position_ids + self._first]
        hidden = inputs_embeds * self.text_model.embed_scale + positions
        for layer in self.text_model.layers:
            hidden = layer(hidden, **more)
        return (self.text_model.layer_norm(hidden),)
