"""Positions that a decoder counts by the ids of its tokens: it gets them where it is given embeddings, too.

Such a decoder adds a row to each token, by its place, and to a token of padding another one. Knows transformers'
decoders by what they take and give; knows no model family.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

_LENGTHS = ("cache_length", "past_key_values_length")
"""Names of the argument that says how many tokens are cached."""


class Rows(nn.Module):
    """Stand-in for the part of a decoder that counts positions: the same rows, by the engine's positions.

    Args:
        counting: the part.
        count: positions that there may be.
        embed: from tokens `[num_tokens]` to the embeddings that the decoder is given, `[num_tokens, hidden_size]`.
        device: of the decoder.
    """

    def __init__(self, counting: Any, count: int, embed: Callable[[Tensor], Tensor], device: torch.device) -> None:
        super().__init__()
        padding = torch.tensor([counting.padding_idx], device=device)
        self._rows: Tensor = counting((padding + 1).expand(1, count))[0]
        self._row_of_padding: Tensor = counting(padding[None])[0, 0]
        self._padding, self._embed = padding, embed
        self._embeds = torch.empty(0)

    def note(self, _: nn.Module, places: tuple[Any, ...], arguments: dict[str, Any]) -> None:
        """Note the embeddings that the decoder is called with, or those of its tokens."""
        given = arguments.get("inputs_embeds")
        self._embeds = self._embed(arguments["input_ids"][0]) if given is None else given[0]

    def forward(self, *_: Any, **lengths: Any) -> Tensor:
        """Return the rows of the decoder's tokens, `[1, num_tokens, hidden_size]`."""
        before = next((lengths[name] for name in _LENGTHS if name in lengths), 0)
        at = torch.arange(len(self._embeds), device=self._embeds.device) + before
        is_padding = (self._embeds == self._embed(self._padding)).all(-1, keepdim=True)
        return torch.where(is_padding, self._row_of_padding, self._rows[at])[None]


@torch.inference_mode()
def count_by_place(decoder: Any, embed: Callable[[Tensor], Tensor]) -> None:
    """Have a decoder add rows by the engine's positions, where it would count by the ids of its tokens.

    Args:
        decoder: the loaded decoder.
        embed: as `Rows` takes it.
    """
    for name, part in decoder.named_children():
        taken = signature(part.forward).parameters
        if getattr(part, "padding_idx", None) is None or "input_ids" not in taken or taken.keys().isdisjoint(_LENGTHS):
            continue
        device = next(decoder.parameters()).device
        rows = Rows(part, decoder.max_target_positions, embed, device)
        decoder.register_forward_pre_hook(rows.note, with_kwargs=True)
        setattr(decoder, name, rows)
