"""The text models of Kosmos-2 and Kosmos-2.5 behind the arguments that the engine gives a decoder.

Transformers' own forward passes make a mask for every pair of tokens, and count positions from the padding token's id.
Knows transformers' modules; knows neither images nor requests.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Decoder(nn.Module):
    """The text model: scaled embeddings, sinusoidal positions, its layers.

    Args:
        text_model: transformers' `Kosmos2TextTransformer` or `Kosmos2_5TextTransformer`.
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
            position_ids: as `embed_positions` takes them.
            more: further arguments of the layers.
        """
        hidden = inputs_embeds * self.text_model.embed_scale + self.embed_positions(position_ids)
        for layer in self.text_model.layers:
            hidden = layer(hidden, **more)
        return (self.text_model.layer_norm(hidden),)

    def embed_positions(self, position_ids: Tensor) -> Tensor:
        """Return what is added to the embeddings of tokens, `[1, num_tokens, hidden_size]`.

        Args:
            position_ids: `[1, num_tokens]`, from 0.
        """
        weights: Tensor = self.text_model.embed_positions.weights
        return weights[position_ids + self._first]


class SegmentDecoder(Decoder):
    """A text model that adds one of two vectors to each token: the second to those of an image."""

    def embed_positions(self, position_ids: Tensor) -> Tensor:
        """Return what is added to the embeddings of tokens, of their positions and of their segments.

        Args:
            position_ids: `[2, 1, num_tokens]`, positions, and the same less the segment; `[1, num_tokens]` for text.
        """
        positions, less = position_ids if position_ids.ndim == 3 else (position_ids, position_ids)
        segments: Tensor = self.text_model.segment_emb(positions - less)
        return super().embed_positions(positions) + segments
