"""Sizes of images and layers that a GGUF file of an encoder states, checked before a configuration is made of them."""

from __future__ import annotations

import math
from typing import Any

from corellm.errors import CheckpointError
from corellm_quantization.gguf.file import GgufFile

_COLOURS = 3
_POSITIONS = "v.position_embd.weight"


def layer_sizes(file: GgufFile) -> dict[str, Any]:
    """Return the sizes of a tower of CLIP or SigLIP, by their names in configurations.

    Raises:
        CheckpointError: one cannot be, or is not that of the positions, of which each patch of an image has one.
    """
    width, inner, heads, size, patch = (
        file.positive(f"clip.vision.{name}")
        for name in ("embedding_length", "feed_forward_length", "attention.head_count", "image_size", "patch_size")
    )
    if width % heads:
        raise CheckpointError(f"{file.path}: {heads} heads do not divide the width of the tower's layers, {width}")
    stored = file.tensors.get(_POSITIONS)
    found = None if stored is None else stored.shape
    wanted = ((size // patch) ** 2 + ("v.class_embd" in file.tensors), width)
    if found != wanted:
        raise CheckpointError(
            f"{file.path}: {_POSITIONS} has the shape {found}, and images of {size} pixels in patches of {patch} need "
            f"{wanted}"
        )
    return {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": file.count("clip.vision.block_count"),
        "num_attention_heads": heads,
        "layer_norm_eps": file.value("clip.vision.attention.layer_norm_epsilon", float),
        "image_size": size,
        "patch_size": patch,
    }


def tokens_per_side(file: GgufFile, scale: int) -> int:
    """Return how many tokens a side of an image has, each of `scale` patches.

    Raises:
        CheckpointError: an image is smaller than a token.
    """
    size, patch = (file.positive(f"clip.vision.{name}") for name in ("image_size", "patch_size"))
    if size < patch * scale:
        raise CheckpointError(f"{file.path}: an image of {size} pixels has no tokens of {scale} patches of {patch}")
    return size // patch // scale


def colours(file: GgufFile) -> dict[str, list[float]]:
    """Return the mean of each colour and its deviation, as image processors name them.

    Raises:
        CheckpointError: they are no three numbers, or a deviation is zero.
    """
    found = {name: file.value(f"clip.vision.{name}", list) for name in ("image_mean", "image_std")}
    for name, values in found.items():
        numbers = [value for value in values if isinstance(value, float) and math.isfinite(value)]
        if not len(numbers) == len(values) == _COLOURS or (name == "image_std" and 0 in numbers):
            raise CheckpointError(f"{file.path}: clip.vision.{name} is {values!r:.60}, not {_COLOURS} numbers of use")
    return found
