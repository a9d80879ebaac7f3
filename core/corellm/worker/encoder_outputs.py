"""Checks of what an adapter's encoder returned: one tensor per item, of the right size, finite.

Knows shapes; knows neither how embeddings are made nor where they are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from corellm.errors import ContractError, EmbeddingCountError, EncoderError
from corellm.multimodal.inputs import MultiModalFeature


def checked_outputs(
    features: Sequence[MultiModalFeature], outputs: Any, width: int | None, dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """Return each item's embeddings, `[num_embeds, width]`, in a dtype on a device; a width of None is the first's.

    Raises:
        ContractError: `outputs` is no tensor and no list of tensors.
        EmbeddingCountError: it has another number of items, or an item another shape.
    """
    parts = list(outputs) if isinstance(outputs, (Tensor, Sequence)) else [outputs]
    if len(parts) != len(features) or not all(isinstance(part, Tensor) for part in parts):
        raise _miscounted(features, outputs, parts)
    width = parts[0].shape[-1] if width is None else width
    for feature, part in zip(features, parts, strict=True):
        if tuple(part.shape) != (feature.placeholder.num_embeds, width):
            raise _misshapen(feature, part, width)
    return [part.to(device=device, dtype=dtype) for part in parts]


def are_finite(parts: Sequence[Tensor]) -> Tensor:
    """Return whether all of each part is finite, `[num_parts]` bool, without waiting for the device."""
    return torch.stack([part.isfinite().all() for part in parts])


def require_finite(features: Sequence[MultiModalFeature], finite: Tensor, dtype: torch.dtype) -> None:
    """Wait for what `are_finite` returned.

    Raises:
        EncoderError: an item's embeddings are not finite.
    """
    for feature, is_finite in zip(features, finite.tolist(), strict=True):
        if not is_finite:
            raise not_finite(feature, dtype)


def not_finite(feature: MultiModalFeature, dtype: torch.dtype) -> EncoderError:
    """Return the error for an item whose embeddings are not."""
    return EncoderError(f"{feature.modality} {feature.item}: its embeddings hold NaN or infinity in {dtype}")


def _misshapen(feature: MultiModalFeature, part: Tensor, width: int) -> EmbeddingCountError:
    wanted, item = feature.placeholder.num_embeds, f"{feature.modality} {feature.item}"
    if part.dim() == 2 and len(part) == wanted:
        return EmbeddingCountError(
            f"{item}: get_multimodal_embeddings returned embeddings of width {part.shape[-1]}, not {width}: the "
            f"decoder's hidden_size, or what get_multimodal_embedding_width states"
        )
    return EmbeddingCountError(
        f"{item}: get_prompt_updates made room for {wanted} embeddings of width {width}, get_multimodal_embeddings "
        f"returned a tensor of shape {tuple(part.shape)}"
    )


def _miscounted(
    features: Sequence[MultiModalFeature], outputs: Any, parts: Sequence[Any]
) -> ContractError | EmbeddingCountError:
    if not all(isinstance(part, Tensor) for part in parts):
        forgotten = " (a forgotten return?)" if outputs is None else ""
        return ContractError(
            f"get_multimodal_embeddings returned {type(outputs).__name__} {outputs!r:.60}{forgotten}; it must "
            f"return a tensor [items, tokens, width], or a list of one tensor [tokens, width] per item"
        )
    shapes = ", ".join(str(list(part.shape)) for part in parts[:4]) + (", ..." if len(parts) > 4 else "")
    return EmbeddingCountError(
        f"get_multimodal_embeddings must return one entry for each of {len(features)} {features[0].modality} "
        f"items, and returned {len(parts)}: {shapes}; divide them by the items' own counts (torch.split)"
    )
