"""BLIP's text layers behind the arguments that the engine gives a decoder which attends to states of items.

Each layer attends to the text and then to the image; in transformers' modules that attention is fixed. Knows these
modules; knows neither pixels nor requests.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


class Decoder(nn.Module):
    """The text layers behind the embeddings of tokens.

    Args:
        bert: transformers' `BlipTextModel`.
    """

    def __init__(self, bert: Any) -> None:
        super().__init__()
        self.embeddings, self.layers = bert.embeddings, bert.encoder.layer
        self.config: Any = bert.config

    def forward(
        self,
        inputs_embeds: Tensor,
        position_ids: Tensor,
        encoder_hidden_states: Tensor | None = None,
        sees_states: Tensor | None = None,
        cache: Any = None,
        attention_mask: Tensor | None = None,
        use_cache: bool = False,
        **more: Any,
    ) -> tuple[Tensor]:
        """Return hidden states `[1, num_tokens, hidden_size]`; without states no layer attends to any.

        Args:
            inputs_embeds: `[1, num_tokens, hidden_size]`, of the table.
            position_ids: `[1, num_tokens]`.
            encoder_hidden_states: `[1, num_new_states, width]`, of images that are not in the cache yet.
            sees_states: `[num_tokens]` bool, which tokens have an image.
            cache: an `EncoderDecoderCache`, for states.
            attention_mask, use_cache: no matter: attention is causal, and keeps keys and values.
            more: for attention.
        """
        placed = inputs_embeds + self.embeddings.position_embeddings(position_ids)
        hidden: Tensor = self.embeddings.LayerNorm(placed)
        for layer in self.layers:
            own = _keys_and_values(layer.attention.self, hidden)
            hidden = self._attend(layer.attention, hidden, own, is_causal=True, **more)
            if encoder_hidden_states is not None and sees_states is not None:
                states = self._states(layer.crossattention.self, encoder_hidden_states, cache)
                seen = self._attend(layer.crossattention, hidden, states, is_causal=False, **more)
                hidden = torch.where(sees_states[None, :, None], seen, hidden)  # text alone has no such layer
            hidden = layer.feed_forward_chunk(hidden)
        return (hidden,)

    def _attend(self, block: Any, hidden: Tensor, keys_and_values: tuple[Tensor, Tensor], **more: Any) -> Tensor:
        """Return hidden states behind one of a layer's two blocks of attention."""
        attention, attend = block.self, ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        query, scaling = _heads(attention, attention.query(hidden)), attention.attention_head_size**-0.5
        attended = attend(attention, query, *keys_and_values, None, scaling=scaling, **more)[0]
        behind: Tensor = block.output(attended.flatten(2), hidden)
        return behind

    def _states(self, attention: Any, new: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        """Return what stands for the keys and values of all states, once those of new ones are in the cache."""
        kept, layer = cache.cross_attention_cache, attention.layer_idx
        if new.shape[1]:
            missing = self.config.encoder_hidden_size - new.shape[2]  # at load the engine tries states as wide as text
            kept.update(*_keys_and_values(attention, functional.pad(new, (0, missing))), layer)
        return kept.layers[layer].keys, kept.layers[layer].values


def _keys_and_values(attention: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the keys and the values of rows `[1, num_rows, width]`, each `[1, num_heads, num_rows, head_size]`."""
    return _heads(attention, attention.key(rows)), _heads(attention, attention.value(rows))


def _heads(attention: Any, rows: Tensor) -> Tensor:
    """Return `[1, num_rows, hidden_size]` as `[1, num_heads, num_rows, head_size]`."""
    return rows.view(*rows.shape[:-1], -1, attention.attention_head_size).transpose(1, 2)
