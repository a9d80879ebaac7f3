"""GIT's text layers as the engine runs a decoder: given embeddings and positions, with attention that it may choose.

In transformers' modules attention is fixed, and text is embedded beside the tower. Knows these modules; knows neither
pixels nor requests.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


class Decoder(nn.Module):
    """The text layers behind the embeddings of tokens and of images.

    Args:
        git: transformers' `GitModel`.
    """

    def __init__(self, git: Any) -> None:
        super().__init__()
        self.embeddings, self.layers = git.embeddings, git.encoder.layer
        self.config: Any = git.config

    def forward(
        self, inputs_embeds: Tensor, position_ids: Tensor, use_cache: bool = False, **more: Any
    ) -> tuple[Tensor]:
        """Return hidden states `[1, num_tokens, hidden_size]`.

        Args:
            inputs_embeds: `[1, num_tokens, hidden_size]`, of the table for text, of the projection for images.
            position_ids: `[1, num_tokens]`, negative for images, whose embeddings are taken as they are.
            use_cache: no matter: attention keeps keys and values.
            more: for attention.
        """
        placed = inputs_embeds + self.embeddings.position_embeddings(position_ids.clamp(min=0))
        hidden = torch.where(position_ids[..., None] < 0, inputs_embeds, self.embeddings.LayerNorm(placed))
        for layer in self.layers:
            attended = self._attended(layer.attention.self, hidden, more)
            hidden = layer.feed_forward_chunk(layer.attention.output(attended, hidden))
        return (hidden,)

    def _attended(self, attention: Any, hidden: Tensor, more: dict[str, Any]) -> Tensor:
        """Return what each token attends to in a layer, `[1, num_tokens, hidden_size]`."""
        size: int = attention.attention_head_size
        query, key, value = (
            project(hidden).unflatten(-1, (-1, size)).transpose(1, 2)  # [1, num_heads, num_tokens, head_size]
            for project in (attention.query, attention.key, attention.value)
        )
        attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        attended: Tensor = attend(attention, query, key, value, None, scaling=size**-0.5, is_causal=True, **more)[0]
        return attended.flatten(2)
