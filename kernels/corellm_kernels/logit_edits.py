"""Changes to a few logits of each row before a token is sampled, in plain torch: the CPU's, and the twin of the GPU's.

What a row's tokens are comes as flat lists: row `r` has the entries `offsets[r]` to `offsets[r + 1]`. Ids outside the
vocabulary are ignored. A logit that is NaN or plus infinity stays one, so that sampling reports the row.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class Entries(Protocol):
    """Some tokens of each row, with a value each."""

    token_ids: Tensor
    """`[num_entries]`, integers."""
    values: Tensor
    """`[num_entries]`, float32."""
    offsets: Tensor
    """`[num_rows + 1]`, integers."""


class Edits(Protocol):
    """The changes, in the order in which they are applied; None for none."""

    allowed: Tensor | None
    allowed_rows: Tensor | None
    """`[num_masks, ceil(vocab / 32)]` int32: the tokens allowed in the rows `allowed_rows`, `[num_masks]`; token `t` is
    bit `t % 32` of word `t // 32`. Bits beyond the vocabulary have no meaning."""
    added: Entries | None
    """To be added; minus infinity forbids a token."""
    seen: Entries | None
    """Distinct tokens, with how often each was generated (0: it was in the prompt only)."""
    penalties: Tensor | None
    """`[3, num_rows]` float32: repetition, frequency and presence penalty of the tokens in `seen`."""


def edited_by_torch(logits: Tensor, edits: Edits) -> Tensor:
    """Return a changed copy in float32.

    Args:
        logits: `[num_rows, vocab]`, any float type.
        edits: of these rows.
    """
    result = logits.to(torch.float32, copy=True)
    if edits.allowed is not None:
        forbidden, of_rows = _unpacked(~edits.allowed, result.shape[1]), edits.allowed_rows.tolist()
        if of_rows == [*range(len(result))]:
            result.masked_fill_(forbidden & (result < torch.inf), -torch.inf)
        else:
            for of_row, row in zip(forbidden, of_rows, strict=True):
                result[row].masked_fill_(of_row & (result[row] < torch.inf), -torch.inf)
    if edits.added is not None:
        rows, ids, values = _flat(result, edits.added)
        result.index_put_((rows, ids), values, accumulate=True)
    if edits.seen is not None:
        rows, ids, counts = _flat(result, edits.seen)
        repetition, frequency, presence = edits.penalties[:, rows]
        before = result[rows, ids]
        after = torch.where(before > 0, before / repetition, before * repetition)
        after -= frequency * counts + presence * (counts > 0)
        result[rows, ids] = after.clamp(max=torch.finfo(torch.float32).max).where(before < torch.inf, before)
    return result


def _unpacked(masks: Tensor, vocab_size: int) -> Tensor:
    """Return packed masks as `[num_masks, vocab]` bool."""
    if masks.device.type == "cpu":  # a tenth of the time
        bits = np.unpackbits(masks.numpy().view(np.uint8), axis=1, count=vocab_size, bitorder="little")
        return torch.from_numpy(bits).view(torch.bool)
    places = torch.arange(32, dtype=torch.int32, device=masks.device)
    return ((masks[:, :, None] >> places) & 1).flatten(1)[:, :vocab_size].bool()


def _flat(logits: Tensor, entries: Entries) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows, tokens and values of the valid entries."""
    offsets, index = entries.offsets, torch.arange(int(entries.offsets[-1]), device=logits.device)
    rows = torch.repeat_interleave(torch.arange(len(logits), device=logits.device), offsets.diff())
    ids = entries.token_ids[index].long()
    inside = (ids >= 0) & (ids < logits.shape[1])
    return rows[inside], ids[inside], entries.values[index[inside]]
