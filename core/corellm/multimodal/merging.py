"""Writes item embeddings into text embeddings; never broadcasts one or drops a surplus one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corellm.errors import EmbeddingCountError

if TYPE_CHECKING:
    from torch import Tensor


def write_rows(inputs_embeds: Tensor, rows: Tensor, is_multimodal: Tensor) -> Tensor:
    """Write one embedding to each masked position.

    Args:
        inputs_embeds: `[num_tokens, hidden_size]`; written to.
        rows: embeddings `[num_multimodal, hidden_size]`, in the order of their positions.
        is_multimodal: `[num_tokens]`, bool, with exactly `num_multimodal` ones.

    Returns:
        `inputs_embeds`.

    Raises:
        EmbeddingCountError: another number or width of embeddings.
    """
    check_embeddings(inputs_embeds, rows, int(is_multimodal.sum()))
    inputs_embeds[is_multimodal] = rows.to(inputs_embeds.dtype)
    return inputs_embeds


def check_embeddings(inputs_embeds: Tensor, embeddings: Tensor, expected: int) -> None:
    """Refuse embeddings that do not match the placeholder tokens.

    Raises:
        EmbeddingCountError: there are not `expected`, or they are not as wide as `inputs_embeds`.
    """
    if embeddings.shape != (expected, inputs_embeds.shape[-1]):
        raise EmbeddingCountError(
            f"{expected} placeholder tokens of width {inputs_embeds.shape[-1]} wait for embeddings, "
            f"got {tuple(embeddings.shape)}"
        )
