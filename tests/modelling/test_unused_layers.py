"""Layers of a vision tower are skipped where no hidden state behind them is used, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from corellm.modelling.unused_layers import skip_unused_layers
from corellm_transformers.tiny import make_tiny_checkpoint


@pytest.mark.parametrize(
    ("architecture", "skipped"),
    [
        ("LlavaNextForConditionalGeneration", 0),  # the last one is used
        ("VideoLlavaForConditionalGeneration", 0),  # a tower of another name
        ("AyaVisionForConditionalGeneration", 0),
        ("Granite4VisionForConditionalGeneration", 0),  # vision_feature_layer is the last but one; others are used, too
    ],
)
def test_layers_that_are_used_stay(architecture: str, skipped: int, tmp_path: Path) -> None:
    import transformers

    make_tiny_checkpoint(tmp_path, architecture=architecture)
    model = getattr(transformers, architecture).from_pretrained(tmp_path)
    assert skip_unused_layers(model) == skipped


def test_the_last_layer_is_skipped_where_the_last_but_one_is_chosen(tmp_path: Path) -> None:
    import transformers

    make_tiny_checkpoint(tmp_path, architecture="LlavaNextForConditionalGeneration")
    model = transformers.LlavaNextForConditionalGeneration.from_pretrained(tmp_path)
    model.config.vision_feature_layer = -2
    assert skip_unused_layers(model) == 1
    model.config.spatial_vision_layer = -1  # another hidden state is used
    model.config.vision_feature_layer = -2
    assert skip_unused_layers(model) == 0
