"""IDEFICS's layers of text and of images behind the arguments that the engine gives a decoder that attends to states.

Transformers' modules keep no keys and values of images, and embed images and run layers in one class. Tables of tokens
that were trained apart are joined. Knows transformers' modules; knows neither images nor requests.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


class Decoder(nn.Module):
    """The layers: before each of some layers of text, one of images, of which a gate lets through a part.

    Args:
        idefics: transformers' `IdeficsModel`.
    """

    def __init__(self, idefics: Any) -> None:
        super().__init__()
        self.config: Any = idefics.config
        self.layers, self.image_layers, self.norm = idefics.layers, idefics.gated_cross_attn_layers, idefics.norm
        self._interval: int = self.config.cross_layer_interval

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
        """Return hidden states, `[1, num_tokens, hidden_size]`.

        Args:
            inputs_embeds: `[1, num_tokens, hidden_size]`.
            position_ids: `[1, num_tokens]`.
            encoder_hidden_states: `[1, num_new_states, hidden_size]`, an image's in their first channels.
            sees_states: `[num_tokens]` bool, which tokens see states; None where no request of the step has any.
            cache: an `EncoderDecoderCache`, for states.
            attention_mask, use_cache: no matter: attention keeps keys and values.
            more: for attention.
        """
        hidden = inputs_embeds
        for index, layer in enumerate(self.layers):
            if index % self._interval == 0:
                of_images = self.image_layers[index // self._interval]
                attended = None
                if sees_states is not None and encoder_hidden_states is not None:
                    normed = of_images.input_layernorm(hidden)
                    attended = _attended(of_images.cross_attn, normed, encoder_hidden_states, cache, more)
                    attended = attended.masked_fill(~sees_states[None, :, None], 0)
                hidden = _gated(of_images, hidden, attended)
            hidden = layer(hidden, position_ids=position_ids, **more)
        return (self.norm(hidden),)


def _gated(layer: Any, hidden: Tensor, attended: Tensor | None) -> Tensor:
    """Return the output of a layer of images, given what its tokens attend to; its MLP runs for all of them."""
    if attended is not None:
        hidden = hidden + torch.tanh(layer.alpha_cross_attn) * attended
    inner = layer.mlp(layer.post_attention_layernorm(hidden))
    gated: Tensor = hidden + torch.tanh(layer.alpha_dense) * inner
    return gated


def _attended(attention: Any, hidden: Tensor, states: Tensor, cache: Any, more: dict[str, Any]) -> Tensor:
    """Return what each token attends to of states, `[1, num_tokens, hidden_size]`.

    Args:
        attention: a transformers `IdeficsAttention` to images.
        hidden: `[1, num_tokens, hidden_size]`, normalized.
        states: as `Decoder.forward` gets them; may be none.
        cache: as it gets it.
        more: for attention.
    """
    query = _heads(attention, attention.q_proj(hidden))
    if states.shape[1]:
        states = states[..., : attention.k_proj.in_features]
        key, value = (_heads(attention, project(states)) for project in (attention.k_proj, attention.v_proj))
        if attention.qk_layer_norms:
            key = attention.k_layer_norm(key)
        key, value = cache.cross_attention_cache.update(key, value, attention.layer_idx)
    else:
        cached = cache.cross_attention_cache.layers[attention.layer_idx]
        key, value = cached.keys, cached.values
    if attention.qk_layer_norms:
        query = attention.q_layer_norm(query)
    attend = ALL_ATTENTION_FUNCTIONS[attention.config._attn_implementation]
    attended = attend(attention, query, key, value, None, scaling=attention.scaling, is_causal=False, **more)[0]
    output: Tensor = attention.o_proj(attended.flatten(2))
    return output


def _heads(attention: Any, projected: Tensor) -> Tensor:
    """Return `[1, num_heads, n, head_size]` of `[1, n, hidden_size]`."""
    return projected.view(1, -1, attention.num_heads, attention.head_dim).transpose(1, 2)


def join_vocabulary(model: Any) -> None:
    """Make one embedding table, and one output layer, of the two of each that a model has.

    They were trained apart: tokens of the decoder's own, and further ones, for images. All count as the model's then.

    Args:
        model: transformers' `IdeficsForVisionText2Text`.
    """
    table, head = model.model.embed_tokens, model.lm_head
    rows = _joined(table, "additional_embedding")
    own = rows if head.weight is table.weight else _joined(head, "additional_fc")
    model.model.embed_tokens = nn.Embedding(rows.shape[0], rows.shape[1], device="meta").eval()
    model.lm_head = nn.Linear(own.shape[1], own.shape[0], bias=False, device="meta").eval()
    model.model.embed_tokens.weight, model.lm_head.weight = rows, own


def _joined(module: Any, further: str) -> nn.Parameter:
    """Return the rows of a module, and those of a further one inside it, if there is one."""
    parts = [part.weight.data for part in (module, getattr(module, further, None)) if part is not None]
    return nn.Parameter(torch.cat(parts), requires_grad=False)
