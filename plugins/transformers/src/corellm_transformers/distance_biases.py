"""Biases that attention adds by distance: what makes one for each pair of tokens gives a table of distances instead.

The engine's batch has no pairs: its attention looks up how far a key lies before its query. The table is what
the model's own code says of pairs that are so far apart. Knows modules by what they have and take; knows no model
family.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from corellm.modelling import DistanceBias
from corellm_transformers.family import needs_plugin

_OF_PAIRS = frozenset({"query_positions", "key_positions"})
"""What a module is told of the pairs whose bias it makes of a token's hidden state."""
_SCALED = "log_scaling_n_floor"
"""What a configuration says of a scale that follows from a query's place in the batch, which is not its position."""


def give_tables(decoder: nn.Module) -> None:
    """Have a decoder's modules give tables of distances.

    Raises:
        CheckpointError: layers scale them by positions that they count themselves.
    """
    part: Any
    for part in decoder.modules():
        if (
            isinstance(getattr(part, "rel_extent", None), int)
            and signature(part.forward).parameters.keys() >= _OF_PAIRS
        ):
            if getattr(decoder.config, _SCALED, None) is not None:
                raise needs_plugin(
                    f"{type(decoder).__name__} scales attention by positions that it counts in the batch ({_SCALED})",
                    None,
                )
            part.forward = _of_states(part.forward, part.rel_extent)
        elif getattr(part, "has_relative_attention_bias", False) and hasattr(part, "compute_bias"):
            part.compute_bias = _of_buckets(part.compute_bias, part.relative_attention_max_distance)


def _of_states(of_pairs: Callable[..., Tensor], extent: int) -> Callable[..., DistanceBias]:
    """Return the forward pass of a module that mixes profiles of distances by a token's state; none reaches farther."""

    def forward(states: Tensor, query_positions: Tensor, key_positions: Tensor) -> DistanceBias:
        before = -torch.arange(extent, device=states.device)
        table = of_pairs(states, query_positions=torch.zeros_like(query_positions), key_positions=before)
        return DistanceBias(nn.functional.pad(table[0].transpose(0, 1).float(), (0, 1)))

    return forward


def _of_buckets(of_pairs: Callable[..., Tensor], max_distance: int) -> Callable[..., DistanceBias]:
    """Return the method of T5's attention: beyond its largest distance all are alike."""

    def compute_bias(*_: Any, **__: Any) -> DistanceBias:
        table = of_pairs(1, max_distance + 1, past_seen_tokens=max_distance)
        return DistanceBias(table[0].transpose(0, 1).flip(-1).float())

    return compute_bias
