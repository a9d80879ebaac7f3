"""Captured encoders return the same embeddings as uncaptured ones; encoders that cannot be captured run as before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from corellm import LLM
from corellm.worker.encoder_graphs import SIZES, EncoderGraphs
from tests.fixtures import random_image
from tests.worker.replayed_graph import ReplayedGraph


def llava(path: Path) -> Path:
    from corellm_llava.tiny import make_tiny_checkpoint

    return make_tiny_checkpoint(path)


def blip2(path: Path) -> Path:
    from corellm_blip2.tiny import make_tiny_checkpoint

    return make_tiny_checkpoint(path)


def qwen2_vl(path: Path) -> Path:
    from corellm_qwen_vl.tiny import make_tiny_checkpoint

    return make_tiny_checkpoint(path)


def process(llm: LLM, prompt: str, seed: int) -> Any:
    """An image, processed."""
    given = {"prompt": prompt, "multi_modal_data": {"image": random_image(40, 30, seed)}}
    (feature,) = llm.engine.input_processor.process(given).features
    return feature


@pytest.mark.parametrize(
    ("make", "prompt", "captured"),
    [(llava, "<image> a", True), (blip2, "a", True), (qwen2_vl, "<|vision_start|><|image_pad|><|vision_end|>", False)],
)
def test_rows_are_those_of_the_encoder(
    make: Callable[[Path], Path], prompt: str, captured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One image, as many as a captured size holds, fewer, and more than any does."""
    options = {"fuse_layers": False}  # torch's operations only: what is replayed here are those
    with LLM(str(make(tmp_path)), dtype="float32", max_model_len=512, num_kv_blocks=64, **options) as llm:
        encoders, mm_processor = llm.engine.runner.encoders, llm.engine.input_processor.mm_processor
        features = [process(llm, prompt, seed) for seed in range(SIZES[-1] + 1)]
        encoders.run(features)
        wanted = [encoders.output(feature) for feature in features]
        encoders.capture_graphs(mm_processor.profile.features, ReplayedGraph)
        replays: list[int] = []
        replay = ReplayedGraph.replay
        monkeypatch.setattr(ReplayedGraph, "replay", lambda self: (replays.append(1), replay(self))[1])
        for count in (1, 3, 8, 9):
            encoders.drop(feature.identifier for feature in features)
            encoders.run(features[:count])
            for feature, rows in zip(features[:count], wanted, strict=False):
                torch.testing.assert_close(encoders.output(feature), rows, rtol=1e-5, atol=1e-5)
        assert len(replays) == (1 + 1 + 1 + 2 if captured else 0)


def test_an_encoder_that_looks_at_values_is_not_captured() -> None:
    def embed(modality: str, items: Mapping[str, Tensor]) -> list[Tensor]:
        return [part[: int(size)] for part, size in zip(items["pixels"], items["sizes"], strict=True)]

    graphs = EncoderGraphs(embed, ReplayedGraph)
    graphs.capture("image", {"pixels": torch.randn(1, 4, 2), "sizes": torch.tensor([3])})
    assert graphs.run("image", {"pixels": torch.randn(1, 4, 2), "sizes": torch.tensor([3])}) is None


def test_items_of_another_shape_or_type_run_as_before() -> None:
    graphs = EncoderGraphs(lambda modality, items: items["pixels"] * 2, ReplayedGraph)
    graphs.capture("image", {"pixels": torch.randn(1, 4, 2)})
    pixels = torch.randn(3, 4, 2)
    found = graphs.run("image", {"pixels": pixels})
    assert found is not None
    assert torch.equal(torch.stack(found), pixels * 2)
    again = graphs.run("image", {"pixels": pixels + 1})
    assert torch.equal(torch.stack(found), pixels * 2), "rows that were handed out changed"
    assert again is not None
    for others in (
        {"pixels": torch.randn(3, 5, 2)},
        {"pixels": pixels.double()},
        {"pixels": [pixels[0]]},
        {"x": pixels},
    ):
        assert graphs.run("image", others) is None
    assert graphs.run("video", {"pixels": pixels}) is None


def test_tensors_of_several_lengths_run_as_before() -> None:
    """An item whose tensors have other lengths than the captured ones runs without a graph."""
    graphs = EncoderGraphs(lambda modality, items: items["pixels"] + items["sizes"].sum(), ReplayedGraph)
    graphs.capture("image", {"pixels": torch.randn(1, 4, 2), "sizes": torch.ones(1, 2)})
    assert graphs.run("image", {"pixels": torch.randn(1, 4, 2), "sizes": torch.ones(1, 2)}) is not None
    assert graphs.run("image", {"pixels": torch.randn(1, 4, 2), "sizes": torch.ones(2, 2)}) is None
