"""Whole prompts through an encoder: packed one after another, or padded.

Knows transformers' attention functions; knows no requests and no poolers. Which of the two a model takes is found in
`choice`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from corellm.errors import ContractError

PACKED_NAME = "corellm_packed"

_PADDING = 64
"""Most padding, in tokens, for which another prompt joins a padded batch: reading all weights again costs as much."""


@dataclass(frozen=True)
class Batch:
    """Prompts of a step, and for models that take them the types of their tokens; None for zeros."""

    token_ids: Sequence[Sequence[int]]
    types: Sequence[Sequence[int] | None]
    num_unseen: Sequence[int] = ()
    """How many tokens at each prompt's end no token sees, as those that fill up a query; empty for none."""

    def num_seen(self, index: int) -> int:
        """Return how many of a prompt's first tokens its tokens see."""
        return len(self.token_ids[index]) - (self.num_unseen[index] if self.num_unseen else 0)


@dataclass(frozen=True)
class _Group:
    """Prompts of one length, of which as many tokens are seen, one after another."""

    first: int
    """Row of their first token."""
    count: int
    length: int
    num_seen: int


Forward = Callable[[Batch], tuple[Tensor, list[int]]]
"""From a batch to hidden states `[num_tokens, hidden_size]`, and to each prompt's first row in them."""


class Packed:
    """All prompts in one row, sorted by length: attention runs once for each length, without padding.

    Args:
        model: the encoder.
        takes_types: whether it gets types of tokens.
    """

    def __init__(self, model: Any, takes_types: bool) -> None:
        self._model, self._takes_types = model, takes_types
        self._first_position = positions_before(model)
        self._device = model.device

    def __call__(self, batch: Batch) -> tuple[Tensor, list[int]]:
        """See `Forward`."""
        lengths = [len(ids) for ids in batch.token_ids]
        seen = [batch.num_seen(index) for index in range(len(lengths))]
        order = sorted(range(len(lengths)), key=lambda index: (lengths[index], seen[index]))
        firsts, groups, row = [0] * len(order), list[_Group](), 0
        for index in order:
            length, firsts[index] = lengths[index], row
            if groups and (groups[-1].length, groups[-1].num_seen) == (length, seen[index]):
                groups[-1] = _Group(groups[-1].first, groups[-1].count + 1, length, seen[index])
            else:
                groups.append(_Group(row, 1, length, seen[index]))
            row += length
        inputs = {
            "input_ids": [token for i in order for token in batch.token_ids[i]],
            "position_ids": [position + self._first_position for i in order for position in range(lengths[i])],
        }
        if self._takes_types:
            inputs["token_type_ids"] = [token for i in order for token in batch.types[i] or [0] * lengths[i]]
        tensors = {name: torch.tensor([values], device=self._device) for name, values in inputs.items()}
        return self._model(**tensors, packed=groups)[0][0], firsts


class Padded:
    """Prompts in rows of like length, with a mask over the padding, by the class's own forward pass.

    Args:
        model: the encoder.
        takes_types: whether it gets types of tokens.
        pad_token_id: token of the padding.
    """

    def __init__(self, model: Any, takes_types: bool, pad_token_id: int) -> None:
        self._model, self._takes_types, self._pad = model, takes_types, pad_token_id

    def __call__(self, batch: Batch) -> tuple[Tensor, list[int]]:
        """See `Forward`."""
        firsts, row, parts = [0] * len(batch.token_ids), 0, []
        for indices in _like_lengths(batch):
            parts.append(self._run(batch, indices))
            for index in indices:
                firsts[index] = row
                row += len(batch.token_ids[index])
        return torch.cat(parts), firsts

    def _run(self, batch: Batch, indices: Sequence[int]) -> Tensor:
        """Return the hidden states of some prompts without those of padding; the last is the longest."""
        longest = len(batch.token_ids[indices[-1]])
        mask = torch.zeros(len(indices), longest, dtype=torch.long)
        ids, types, is_real = torch.full_like(mask, self._pad), torch.zeros_like(mask), torch.zeros_like(mask).bool()
        for row, index in enumerate(indices):
            tokens, stated = batch.token_ids[index], batch.types[index]
            mask[row, : batch.num_seen(index)] = 1
            is_real[row, : len(tokens)] = True
            ids[row, : len(tokens)] = torch.tensor(tokens)
            if stated is not None:
                types[row, : len(tokens)] = torch.tensor(stated)
        inputs = {"input_ids": ids, "attention_mask": mask} | ({"token_type_ids": types} if self._takes_types else {})
        device = self._model.device
        hidden: Tensor = self._model(**{name: tensor.to(device) for name, tensor in inputs.items()})[0]
        return hidden[is_real.to(device)]


def _like_lengths(batch: Batch) -> Iterator[list[int]]:
    """Yield indices in order of length, as many at once as fit without much padding.

    Prompts with tokens that are not seen get no padding: what these see of it differs between classes (DeBERTa).
    """
    lengths = [len(ids) for ids in batch.token_ids]
    hides = [batch.num_seen(index) < length for index, length in enumerate(lengths)]
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: (lengths[index], hides[index])):
        more = lengths[index] - lengths[group[-1]] if group else 0
        if more * len(group) > _PADDING or (more and hides[group[-1]]):
            yield group
            group = []
        group.append(index)
    yield group


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packed: Sequence[_Group] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Return attention of a transformers layer within each prompt, `[1, num_tokens, num_heads, head_size]`.

    The tensors are `[1, num_heads, num_tokens, head_size]`.
    """
    if packed is None or attention_mask is not None:
        raise ContractError(f"{type(module).__name__} does not pass its arguments on, or has a mask of its own")
    attended = query.new_empty(query.shape[2], query.shape[1], value.shape[3])
    for group in packed:
        rows = slice(group.first, group.first + group.count * group.length)
        q, k, v = (
            tensor[0, :, rows].view(tensor.shape[1], group.count, group.length, -1).transpose(0, 1)
            for tensor in (query, key, value)
        )
        k, v, mask = k[:, :, : group.num_seen], v[:, :, : group.num_seen], None
        if sliding_window is not None and sliding_window <= group.length:
            position = torch.arange(group.length, device=query.device)
            mask = (position[:, None] - position[: group.num_seen]).abs() < sliding_window
        result = nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
        )
        attended[rows] = result.transpose(1, 2).flatten(0, 1)
    return attended[None], None


def positions_before(model: nn.Module) -> int:
    """Return the position of a prompt's first token: after that of padding, where the table has one for padding."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0
