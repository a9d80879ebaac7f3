"""Changes to single logits before a token is chosen: allowed tokens, biases, forbidden tokens and penalties.

Collects the edits of a batch's sequences as flat lists on the device, so that rows without edits cost nothing. They are
applied by plain torch here, or by an extension's kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from corellm.sampling.sampling_state import Ids, SamplingState, Values
from corellm.system.transfers import upload


@dataclass(frozen=True)
class Entries:
    """Some tokens of each row, with a value each: row `r` has the entries `offsets[r]:offsets[r + 1]`."""

    token_ids: Tensor
    """`[num_entries]` int64, within the vocabulary."""
    values: Tensor
    """`[num_entries]` float32."""
    offsets: Tensor
    """`[num_rows + 1]` int64."""


@dataclass(frozen=True)
class LogitEdits:
    """The edits of a batch on the logits' device, in the order in which they are applied; None for those no row has."""

    allowed: Tensor | None
    """`[num_masks, ceil(vocab / 32)]` int32: the tokens allowed in the rows `allowed_rows`; other logits become minus
    infinity. Token `t` is bit `t % 32` of word `t // 32`; bits beyond the vocabulary have no meaning."""
    allowed_rows: Tensor | None
    """`[num_masks]` int64."""
    added: Entries | None
    """To be added; minus infinity forbids a token. A token may come more than once."""
    seen: Entries | None
    """Distinct tokens, with how often each was generated (0: it was in the prompt only)."""
    penalties: Tensor | None
    """`[3, num_rows]` float32: repetition, frequency and presence penalty of the tokens in `seen`."""


def edit_logits(logits: Tensor, states: Sequence[SamplingState]) -> None:
    """Apply allowed tokens, the constraint, bad words, `min_tokens`, `logit_bias` and the penalties, in place.

    Args:
        logits: `[num_seqs, vocab]`, float32; overwritten.
        states: one per row; rows whose `edits_logits` is false are left as they are.
    """
    apply_edits(logits, collect_edits(states, logits.device))


def collect_edits(states: Sequence[SamplingState], device: torch.device) -> LogitEdits:
    """Return the sequences' edits for their next token, copied to the device asynchronously."""
    masks = [(row, mask) for row, state in enumerate(states) if (mask := state.allowed_tokens()) is not None]
    added = [_joined(state.additions()) for state in states]
    seen = [state.seen_tokens() if state.penalised else _NOTHING for state in states]
    penalised = any(state.penalised for state in states)
    return LogitEdits(
        allowed=upload(np.stack([mask for _, mask in masks]), device) if masks else None,
        allowed_rows=upload(np.array([row for row, _ in masks]), device) if masks else None,
        added=_entries(added, device) if any(len(ids) for ids, _ in added) else None,
        seen=_entries(seen, device) if penalised else None,
        penalties=upload(_penalties(states), device) if penalised else None,
    )


def apply_edits(logits: Tensor, edits: LogitEdits) -> None:
    """Change float32 logits `[num_rows, vocab]` in place.

    Repetition penalty: Keskar et al. 2019, arXiv:1909.05858; frequency and presence penalty, after it, as OpenAI
    defines them.
    """
    if edits.allowed is not None:
        assert edits.allowed_rows is not None
        for row, mask in zip(edits.allowed_rows.tolist(), edits.allowed, strict=True):
            logits[row].masked_fill_(~_unpacked(mask, logits.shape[1]), -torch.inf)
    if edits.added is not None:
        logits.index_put_(_places(edits.added), edits.added.values, accumulate=True)
    if edits.seen is not None:
        assert edits.penalties is not None
        rows, ids = _places(edits.seen)
        repetition, frequency, presence = edits.penalties[:, rows]
        counts, before = edits.seen.values, logits[rows, ids]
        after = torch.where(before > 0, before / repetition, before * repetition)
        after -= frequency * counts + presence * (counts > 0)
        # A tiny repetition penalty must not overflow to infinity, which no distribution survives.
        logits[rows, ids] = after.clamp_(max=torch.finfo(after.dtype).max)


_NOTHING = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32))


def _joined(parts: Sequence[tuple[Ids, Values]]) -> tuple[Ids, Values]:
    if len(parts) < 2:
        return parts[0] if parts else _NOTHING
    return np.concatenate([ids for ids, _ in parts]), np.concatenate([values for _, values in parts])


def _entries(found: Sequence[tuple[Ids, Values]], device: torch.device) -> Entries:
    token_ids, values = _joined(found)
    offsets = np.cumsum([0, *(len(ids) for ids, _ in found)], dtype=np.int64)
    return Entries(upload(token_ids, device), upload(values, device), upload(offsets, device))


def _penalties(states: Sequence[SamplingState]) -> Values:
    params = [state.params for state in states]
    rows = [(p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in params]
    return np.ascontiguousarray(np.array(rows, dtype=np.float32).T)


def _places(entries: Entries) -> tuple[Tensor, Tensor]:
    """Return each entry's row and token."""
    rows = torch.arange(len(entries.offsets) - 1, device=entries.offsets.device)
    counts = entries.offsets.diff()
    return rows.repeat_interleave(counts, output_size=len(entries.token_ids)), entries.token_ids


def _unpacked(mask: Tensor, vocab_size: int) -> Tensor:
    """Return a packed mask as `[vocab]` bool."""
    bits = torch.arange(32, dtype=torch.int32, device=mask.device)
    return ((mask[:, None] >> bits) & 1).flatten()[:vocab_size].bool()
