"""Decoders that take of each token, beside its embedding, a row for each of their layers (Gemma 3n, Gemma 4).

What the engine knows of a token is one row: its embedding, and behind that the rows of the layers. They come apart
where the decoder is called. Knows transformers' name for the argument; knows no model family.
"""

from __future__ import annotations

from dataclasses import replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from corellm.modelling.decoder_inputs import DecoderInputs

_ARGUMENT, _WIDTH = "per_layer_inputs", "hidden_size_per_layer_input"


def rows_width(decoder: Any) -> int:
    """Return the width of one token's rows for all layers; 0 for a decoder that takes embeddings alone."""
    if not getattr(decoder, _WIDTH, 0) or _ARGUMENT not in signature(decoder.forward).parameters:
        return 0
    return int(decoder.embed_tokens_per_layer.embedding_dim)


def no_rows(decoder: Any, embeds: Tensor) -> dict[str, Tensor]:
    """Return the decoder's argument with zeros for its layers, or no argument where it takes none.

    Args:
        decoder: the text decoder.
        embeds: what it is given beside it, `[1, num_tokens, hidden_size]`.
    """
    width = rows_width(decoder)
    if not width:
        return {}
    each: int = getattr(decoder, _WIDTH)
    return {_ARGUMENT: embeds.new_zeros(*embeds.shape[:2], width // each, each)}


class LayerInputs:
    """A table of rows for layers.

    Args:
        decoder: takes the rows from now on as a part of `inputs_embeds`; zeros, where there are embeddings alone.

    Attributes:
        hidden_size: width of an embedding, without the rows behind it.
    """

    def __init__(self, decoder: Any) -> None:
        self._table, self._width = decoder.embed_tokens_per_layer, getattr(decoder, _WIDTH)
        self.hidden_size: int = decoder.config.hidden_size
        decoder.register_forward_pre_hook(self._take_apart, with_kwargs=True)

    @classmethod
    def of(cls, decoder: Any) -> LayerInputs | None:
        """Return those of a decoder; None of one that takes embeddings alone."""
        return cls(decoder) if rows_width(decoder) else None

    def behind(self, embeds: Tensor, input_ids: Tensor) -> Tensor:
        """Return embeddings of tokens with the rows of layers behind them.

        Tokens that are not in the table have the rows of token 0, as in transformers' Gemma 3n.

        Args:
            embeds: `[num_tokens, hidden_size]`.
            input_ids: `[num_tokens]`.
        """
        rows = self._table(input_ids.where(input_ids < self._table.num_embeddings, 0))
        return torch.cat([embeds, rows.to(embeds.dtype)], dim=-1)

    def joined(self, given: DecoderInputs) -> DecoderInputs:
        """Return what a model gives its decoder, with the rows behind the embeddings."""
        more = dict(given.more)
        rows: Tensor = more.pop(_ARGUMENT)
        return replace(given, embeds=torch.cat([given.embeds, rows.flatten(2)], dim=-1), more=more)

    def _take_apart(
        self, decoder: nn.Module, places: tuple[Any, ...], arguments: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        embeds = arguments.get("inputs_embeds")
        if embeds is None or arguments.get(_ARGUMENT) is not None:
            return None  # called by the model itself
        embeds, rows = embeds[..., : self.hidden_size], embeds[..., self.hidden_size :]
        given = {_ARGUMENT: rows.unflatten(-1, (-1, self._width))} if rows.shape[-1] else no_rows(decoder, embeds)
        return places, {**arguments, "inputs_embeds": embeds, **given}
