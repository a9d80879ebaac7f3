"""Putting an item's rows into text embeddings: the one write that neither broadcasts a row nor clips surplus ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corellm.errors import EmbeddingCountError

if TYPE_CHECKING:
    from torch import Tensor


def write_rows(inputs_embeds: Tensor, rows: Tensor, is_multimodal: Tensor) -> Tensor:
    """Write one row to each masked position.

    Args:
        inputs_embeds: `[num_tokens, hidden_size]`; written to.
        rows: `[num_multimodal, hidden_size]`, in the order of their positions.
        is_multimodal: `[num_tokens]`, bool, with exactly `num_multimodal` ones.

    Returns:
        `inputs_embeds`.

    Raises:
        EmbeddingCountError: another number of rows, or of another width.
    """
    check_rows(inputs_embeds, rows, int(is_multimodal.sum()))
    inputs_embeds[is_multimodal] = rows.to(inputs_embeds.dtype)
    return inputs_embeds


def check_rows(inputs_embeds: Tensor, rows: Tensor, wanted: int) -> None:
    """Refuse rows that are not exactly what placeholders wait for.

    Raises:
        EmbeddingCountError: there are not `wanted`, or they are not as wide as `inputs_embeds`.
    """
    if rows.shape != (wanted, inputs_embeds.shape[-1]):
        raise EmbeddingCountError(
            f"{wanted} placeholder tokens of width {inputs_embeds.shape[-1]} wait for embeddings, "
            f"got {tuple(rows.shape)}"
        )
