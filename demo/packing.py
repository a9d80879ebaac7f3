"""Packed rows: one image or video and several questions about it in one row of tokens, with mask and loss.

Both demo models train on such rows. Knows nothing of scenes, tokenizers' vocabularies or model architectures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedTokenizerBase

IGNORE = -100  # the label of tokens and patches without a target


def cached_encoder(tokenizer: PreTrainedTokenizerBase) -> Callable[[str], list[int]]:
    """Return a function from text to token ids, without special tokens, that tokenizes each text once."""

    @cache
    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    return encode


class Row:
    """One row of a batch; `end` is the number of tokens in it so far.

    Segment 0 is the image or video and, in a dialogue, every turn; independent questions are segments 1, 2, ...;
    padding is segment -1.
    """

    def __init__(self, size: int, position_axes: int = 1) -> None:
        self.ids = np.zeros(size, np.int64)
        self.labels = np.full(size, IGNORE)
        self.positions = np.zeros((position_axes, size), np.int64)
        self.segments = np.full(size, -1)
        self.media_hidden = np.zeros(size, bool)  # True for tokens that do not attend to the image or video
        self.end = 0

    def add_media(self, ids: list[int], positions: np.ndarray) -> None:
        """Start the row with the tokens of the image or video. positions: [position_axes, len(ids)]"""
        self.end = len(ids)
        self.ids[: self.end], self.positions[:, : self.end], self.segments[: self.end] = ids, positions, 0

    def add_question(
        self, question: list[int], answer: list[int], *, position: int, segment: int, hide_media: bool
    ) -> bool:
        """Append a question and its answer, with positions from `position` on; return False if they do not fit."""
        start, middle = self.end, self.end + len(question)
        end = middle + len(answer)
        if end > len(self.ids):
            return False
        self.ids[start:end] = question + answer
        self.labels[middle:end] = answer
        self.positions[:, start:end] = np.arange(position, position + end - start)
        self.segments[start:end] = segment
        self.media_hidden[start:end] = hide_media
        self.end = end
        return True


def stack(rows: Sequence[Row], name: str) -> torch.Tensor:
    """Return one array of every row as a tensor. [batch, ...]"""
    return torch.from_numpy(np.stack([getattr(row, name) for row in rows]))


def attention_mask(rows: Sequence[Row]) -> torch.Tensor:
    """Return where a token may attend: its own segment and the image or video before it. [batch, 1, size, size] bool"""
    segments, hidden = stack(rows, "segments"), stack(rows, "media_hidden")
    same = segments[:, :, None] == segments[:, None, :]
    media = (segments[:, None, :] == 0) & ~hidden[:, :, None]
    size = segments.shape[1]
    causal = torch.ones(size, size, dtype=torch.bool).tril()
    return ((same | media) & causal)[:, None]


def additive_mask(mask: torch.Tensor) -> torch.Tensor:
    """Return what eager attention adds to the scores: 0 where `mask` is True, very negative elsewhere."""
    return torch.zeros(mask.shape).masked_fill_(~mask, -1e4)


def answer_loss(lm_head: nn.Module, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of the answers' tokens. hidden: [batch, size, hidden_size], labels: [batch, size]"""
    targets = labels[:, 1:]
    chosen = targets != IGNORE
    logits = lm_head(hidden[:, :-1][chosen]).float()  # [num_targets, vocab_size]
    return functional.cross_entropy(logits, targets[chosen], label_smoothing=0.02)
