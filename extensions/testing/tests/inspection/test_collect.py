"""A report equals what the engine does: the same tokens, masks, positions and embeddings, in every kind of layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from corellm import LLM
from corellm.cli.conversation import user_message
from corellm.cli.media import open_file
from corellm.plugin.extensions import load_extensions
from corellm_testing.inspection.report import Report
from extensions.testing.tests.inspection.conftest import Inspect

PROMPTS = [
    ("llava", ("image.png", "image.png")),
    ("fuyu", ("image.png",)),
    ("blip2", ("image.png",)),
    ("qwen2_vl", ("video.mp4", "image.png")),
    ("qwen3_vl", ("image.png", "video.mp4")),
    ("qwen2_audio", ("audio.wav",)),
]


@pytest.mark.parametrize(("family", "names"), PROMPTS)
def test_report_tells_what_the_engine_does(
    inspect: Inspect, tiny: Callable[[str], Path], media: Path, family: str, names: tuple[str, ...]
) -> None:
    """Tokens, placeholders, masks, positions, tensors and embeddings equal those of an engine of its own."""
    report = inspect(family, "What?", *names)
    assert report.error is None
    with LLM(str(tiny(family))) as llm, torch.inference_mode():
        files = [open_file(str(media / name)) for name in names]
        processed = llm.engine.input_processor.process_chat([user_message("What?", files)])
        hooks, runner = llm.engine.input_processor.mm_processor.hooks, llm.engine.runner
        assert [token.id for token in report.tokens] == processed.token_ids
        result = hooks.get_rope_positions(
            model=runner.model, token_ids=processed.token_ids, mm_features=processed.features
        )
        positions, offset = (torch.arange(len(processed.token_ids)), 0) if result is None else result
        told = torch.tensor([token.positions for token in report.tokens]).T
        assert torch.equal(told, positions.reshape(told.shape))
        assert report.position_offset == offset
        runner.encoders.run(processed.features)
        for number, (item, feature) in enumerate(zip(report.items, processed.features, strict=True)):
            place = feature.placeholder
            assert (item.modality, item.index, item.identifier) == (feature.modality, feature.item, feature.identifier)
            assert (item.offset, item.length, item.num_embeds) == (place.offset, place.length, place.num_embeds)
            span = report.tokens[place.offset : place.end]
            assert [token.item for token in span] == [number] * place.length
            assert [token.embed is not None for token in span] == list(place.is_embed or [True] * place.length)
            assert [token.embed for token in span if token.embed is not None] == list(range(place.num_embeds))
            assert {t.name: t.shape for t in item.tensors} == {
                name: str(list(data.shape)) for name, data in feature.data.get_data().items()
            }
            output = runner.encoders.output(feature)
            assert item.embeddings is not None
            assert item.embeddings.shape == str(list(output.shape))
            assert item.embeddings.high == pytest.approx(float(output.max()), rel=1e-4)
    inside = sum(item.length for item in report.items)
    assert sum(token.item is not None for token in report.tokens) == inside


def grids(report: Report) -> list[tuple[int, int, int] | None]:
    return [(item.grid.steps, item.grid.rows, item.grid.columns) if item.grid else None for item in report.items]


def test_grids_come_from_the_layout(inspect: Inspect) -> None:
    """Grids come from a square number, a mask of rows, or M-RoPE positions; a Q-Former's queries have none."""
    assert grids(inspect("llava", "What?", "image.png", "image.png")) == [(1, 4, 4)] * 2
    assert grids(inspect("fuyu", "What?", "image.png")) == [(1, 3, 4)]
    for family, names in PROMPTS[3:5]:
        for item, grid in zip((report := inspect(family, "What?", *names)).items, grids(report), strict=True):
            tensors = {tensor.name: tensor.values for tensor in item.tensors}
            steps, height, width = json.loads(tensors[f"{item.modality}_grid_thw"])
            assert grid == (steps, height // 2, width // 2)
    blip2 = inspect("blip2", "What?", "image.png")
    assert blip2.items[0].num_embeds not in (4, 9, 16, 25)
    assert grids(blip2) == [None]


def test_views_show_every_patch_once(inspect: Inspect) -> None:
    """There is one view under the grid for each step: of the model's input if that has the shape of an image."""
    llava = inspect("llava", "What?", "image.png", "image.png").items[0]
    assert [(view.caption.split(",")[0], view.step) for view in llava.views] == [
        ("the image", None),
        ("pixel_values", 0),
    ]
    video = inspect("qwen2_vl", "What?", "video.mp4", "image.png").items[0]
    assert video.grid is not None
    assert [view.step for view in video.views] == list(range(video.grid.steps))
    audio = inspect("qwen2_audio", "What?", "audio.wav").items[0]
    assert [(view.mime_type, view.over_time) for view in audio.views] == [
        ("image/svg+xml", True),
        ("image/png", True),
    ]


def test_stages_are_timed_and_the_second_pass_comes_from_the_cache(inspect: Inspect) -> None:
    """Every stage is reported with its hooks; the second time no processor is called."""
    report = inspect("qwen2_vl", "What?", "video.mp4", "image.png")
    stages = {stage.name: stage for stage in report.stages}
    assert list(stages) == [
        "load", "dummy items", "read media", "hash", "decode", "prepare", "prepare again", "encode video 0",
        "encode image 0", "first token",
    ]  # fmt: skip
    assert all(stage.seconds > 0 for stage in report.stages)
    assert stages["prepare again"].note == "2 of 2 from the cache"
    hooks = {name: [call.hook for call in stage.hooks] for name, stage in stages.items()}
    assert hooks["prepare"].count("call_hf_processor") == 2
    assert "call_hf_processor" not in hooks["prepare again"]
    assert hooks["encode video 0"] == ["get_multimodal_embeddings"]
    assert "get_rope_positions" in hooks["first token"]


def test_text_alone(inspect: Inspect) -> None:
    """A prompt without items has positions and no items; the tokenizer's spelling of spaces and newlines is undone."""
    report = inspect("llava", "What is\nit?", raw=True)
    assert report.error is None
    assert report.items == []
    assert [token.positions for token in report.tokens] == [(i,) for i in range(len(report.tokens))]
    assert "".join(token.text for token in report.tokens[1:]) == "What is\nit?"


def test_unmatched_placeholders_show_the_prompt_before(inspect: Inspect) -> None:
    """A prompt without its item's placeholder: a failed stage, and the tokens before expansion."""
    report = inspect("llava", "no place", "image.png", raw=True)
    assert report.error is not None
    assert report.error.startswith("prepare: MissingPlaceholderError: ")
    assert "".join(token.text for token in report.tokens[1:]) == "no place"
    assert report.stages[-1].name == "prepare"


def test_json_is_json(inspect: Inspect) -> None:
    """The JSON has everything but the images."""
    report = inspect("qwen2_vl", "What?", "video.mp4", "image.png")
    plain = json.loads(report.to_json())
    assert [token["id"] for token in plain["tokens"]] == [token.id for token in report.tokens]
    assert plain["items"][0]["grid"]["columns"] == report.items[0].grid.columns  # type: ignore[union-attr]
    assert "views" not in plain["items"][0]


def test_nothing_of_it_stays(inspect: Inspect) -> None:
    """Hook calls of models loaded later are not recorded."""
    inspect("llava", "What is\nit?", raw=True)
    names = {type(plugin).__name__ for plugin in load_extensions().get_plugins()}
    assert "Recorder" not in names
