"""Which forward pass an encoder takes, found at load: what a prompt gives alone must come out of a batch.

The oracle is the class's own forward pass. Knows transformers' attention functions; knows no requests.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from corellm.errors import CheckpointError, ContractError
from corellm_pooling.text_encoders.forward import PACKED_NAME, Batch, Forward, Packed, Padded, packed_attention

_CLOSE, _CLOSE_FLOAT32 = 0.1, 1e-4
"""Largest difference of hidden states that count as equal, as a share of their norm."""


@torch.inference_mode()
def choose_forward(model: Any, tokenizer: Any, max_len: int) -> Forward:
    """Return the quickest forward pass that gives for prompts in a batch what the class gives for each alone.

    Args:
        model: the encoder, with attention of transformers' own.
        tokenizer: of the checkpoint.
        max_len: longest prompt.

    Raises:
        CheckpointError: there is none; a prompt's result depends on the others.
    """
    from transformers import AttentionInterface

    takes_types = "token_type_ids" in inspect.signature(model.forward).parameters
    takes_types = takes_types and "token_type_ids" in tokenizer.model_input_names
    batch = _sample(model, tokenizer.pad_token_id, max_len)
    expected = [model(input_ids=torch.tensor([ids], device=model.device))[0][0] for ids in batch.token_ids]
    own = model.config._attn_implementation
    AttentionInterface.register(PACKED_NAME, packed_attention)
    packed, padded = Packed(model, takes_types), Padded(model, takes_types, tokenizer.pad_token_id or 0)
    if model._supports_attention_backend:
        _set_attention(model, PACKED_NAME)
        with suppress(RuntimeError, TypeError, ValueError, IndexError, AttributeError, ContractError):
            if _gives(packed, batch, expected):
                return packed
        _set_attention(model, own)
    if _gives(padded, batch, expected):
        return padded
    raise CheckpointError(
        f"{type(model).__name__} gives other results for a prompt in a batch than alone, so it cannot be served; run "
        "this checkpoint with transformers, one prompt at a time"
    )


def _sample(model: Any, pad_token_id: int | None, max_len: int) -> Batch:
    """Return prompts of random tokens, one of them longer than the windows of attention, if any."""
    windows = [getattr(module, "sliding_window", None) for module in model.modules()]
    longest = max([12, *(2 * window + 2 for window in windows if isinstance(window, int))])
    size = model.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    prompts = [
        torch.randint(size, (min(length, max_len),), generator=generator).tolist() for length in (3, longest, 7, 7)
    ]
    real = [[token if token != pad_token_id else (token + 1) % size for token in prompt] for prompt in prompts]
    return Batch(real, [None] * len(real))


def _gives(forward: Forward, batch: Batch, expected: Sequence[Tensor]) -> bool:
    """Whether a forward pass gives the expected hidden states."""
    hidden, firsts = forward(batch)
    limit = _CLOSE_FLOAT32 if hidden.dtype == torch.float32 else _CLOSE
    rows = [hidden[first : first + len(alone)] for first, alone in zip(firsts, expected, strict=True)]
    return all((row - alone).norm() <= limit * alone.norm() for row, alone in zip(rows, expected, strict=True))


def _set_attention(model: nn.Module, name: str) -> None:
    for config in {id(c): c for module in model.modules() if (c := getattr(module, "config", None))}.values():
        config._attn_implementation = name
