"""How many items of each modality a prompt may have: the model's limits, lowered by the operator's. Knows counts."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from corellm.config import MultiModalConfig
from corellm.errors import ItemLimitError, UnsupportedModalityError

NO_LIMITS = MultiModalConfig(
    max_image_pixels=sys.maxsize, max_video_pixels=sys.maxsize, max_video_frames=sys.maxsize,
    max_video_bytes=sys.maxsize, max_video_decoded_pixels=sys.maxsize, max_audio_seconds=float(2**31),
)  # fmt: skip
"""Limits of what does not come from users."""


def lowered_limits(supported: Mapping[str, int | None], config: MultiModalConfig) -> dict[str, int | None]:
    """Return `{modality: most items per prompt, or None for any number}`.

    Args:
        supported: the model's.
        config: the operator's.

    Raises:
        UnsupportedModalityError: the operator allows items that the model does not take.
        ItemLimitError: the operator allows more of them than the model takes.
    """
    limits = dict(supported)
    allowed = config.item_limits
    for modality in config.limit_mm_per_prompt:
        wanted = allowed.get(modality)
        if modality not in limits:
            if wanted != 0:
                raise UnsupportedModalityError(
                    f"limit_mm_per_prompt: this model takes no {modality!r}; it takes {_listed(limits)}",
                    modality=modality,
                )
            continue
        if wanted is None:
            continue
        most = limits[modality]
        if most is not None and wanted > most:
            raise ItemLimitError(
                f"limit_mm_per_prompt: {wanted} {modality}s, but the model takes at most {most} per prompt",
                modality=modality, expected=most, got=wanted,
            )  # fmt: skip
        limits[modality] = wanted
    return limits


def check_counts(counts: Mapping[str, int], limits: Mapping[str, int | None], config: MultiModalConfig) -> None:
    """Check the numbers of a request's items.

    Args:
        counts: `{modality: items}`.
        limits: of `lowered_limits`.
        config: the operator's, for the way out.

    Raises:
        UnsupportedModalityError, ItemLimitError: with the limit and the count.
    """
    for modality, count in counts.items():
        check_modality(modality, limits)
        limit = limits[modality]
        if limit is not None and count > limit:
            raise ItemLimitError(
                f"{count} {modality}s in the request, at most {limit} allowed per prompt; send fewer"
                + (", or raise limit_mm_per_prompt" if modality in config.item_limits else ""),
                modality=modality, expected=limit, got=count,
            )  # fmt: skip


def check_modality(modality: str, limits: Mapping[str, int | None]) -> None:
    """Check that the model takes a modality.

    Raises:
        UnsupportedModalityError: says what it takes.
    """
    if modality not in limits:
        raise UnsupportedModalityError(f"this model takes no {modality}; it takes {_listed(limits)}", modality=modality)


def _listed(limits: Mapping[str, int | None]) -> str:
    """Return the modalities that a model takes, for messages."""
    return ", ".join(limits) or "text alone"
