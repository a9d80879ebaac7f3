"""Rows of encoder output are kept as wide as the adapter says, and any other width is an error that names both."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from corellm.errors import EmbeddingCountError
from corellm.multimodal import MultiModalFeature, MultiModalFieldConfig, PlaceholderRange
from corellm.multimodal.fields import split_items
from corellm.worker.encoder_runner import EncoderRunner


def feature(item: int, tokens: int) -> MultiModalFeature:
    """An item that takes `tokens` embeddings."""
    fields = {"pixels": MultiModalFieldConfig.batched("image")}
    data = split_items({"pixels": torch.full((1, tokens), float(item))}, fields)["image"][0]
    return MultiModalFeature("image", item, f"image-{item}", PlaceholderRange(0, tokens), data)


def runner(width: int, made: int) -> EncoderRunner:
    """A runner for rows of `width`, and an encoder that makes rows of `made`."""

    def embed(model: Any, modality: str, mm_kwargs: Any) -> list[torch.Tensor]:
        return [row[:, None].expand(-1, made) for row in mm_kwargs["pixels"]]

    hooks = SimpleNamespace(get_multimodal_embeddings=embed)
    return EncoderRunner(hooks, None, width, torch.float32, torch.device("cpu"))


def test_rows_wider_than_an_embedding() -> None:
    """Three times the hidden size, for items of different lengths."""
    encoders = runner(width=24, made=24)
    items = [feature(0, 3), feature(1, 5)]
    encoders.run(items)
    for i, item in enumerate(items):
        assert torch.equal(encoders.output(item), torch.full((item.placeholder.num_embeds, 24), float(i)))


@pytest.mark.parametrize(("width", "made"), [(8, 24), (24, 8)])
def test_another_width(width: int, made: int) -> None:
    """Found when the dummies are embedded, at load."""
    with pytest.raises(
        EmbeddingCountError, match=rf"embeddings of width {width}, .* gave a tensor of shape \(3, {made}\)"
    ):
        runner(width, made).check([feature(0, 3)])
