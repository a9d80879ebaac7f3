"""Qwen2-VL to Qwen3-VL: arguments, files and bounds as in transformers; what is wrong gets one clear line."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from PIL import Image

from corellm import LLM, SamplingParams
from corellm.errors import (
    CheckpointError,
    MediaError,
    PlaceholderError,
    ProcessorKwargsError,
    PromptTooLongError,
)
from corellm_qwen_vl.contract import QwenReference
from corellm_qwen_vl.processor import QwenVLProcessor
from corellm_qwen_vl.settings import ACCEPTED, FOR_IMAGES, QWEN2, QWEN3
from corellm_qwen_vl.tiny import make_tiny_checkpoint
from corellm_testing.reference import token_ids_of

ARCHITECTURES = (
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
)
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"
Process = Callable[..., Any]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A loaded model of each generation."""
    path = make_tiny_checkpoint(tmp_path_factory.mktemp("qwen"), architecture=request.param)
    with LLM(str(path), dtype="float32") as llm:
        yield llm


@pytest.fixture
def process(llm: LLM) -> Process:
    """`process(text, media, **processor kwargs)`: the expanded prompt and its items."""

    def process(text: str, media: dict[str, Any], **kwargs: Any) -> Any:
        prompt = {"prompt": text, "multi_modal_data": media, "mm_processor_kwargs": kwargs}
        return llm.engine.input_processor.process(prompt)

    return process


def is_third(llm: LLM) -> bool:
    """Whether it is Qwen3-VL."""
    return llm.engine.context.hf_config.model_type == "qwen3_vl"


def make_image(width: int, height: int, seed: int) -> Image.Image:
    """Noise."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def make_video(num_frames: int, width: int, height: int, seed: int) -> np.ndarray[Any, Any]:
    """Noise, each frame another."""
    return np.random.default_rng(seed).integers(0, 256, (num_frames, height, width, 3), dtype=np.uint8)


# --- equal to transformers ------------------------------------------------------------------------------------------

words = st.text(st.characters(codec="utf-8", exclude_characters="<", exclude_categories=["Cs"]), max_size=8)
sides = st.integers(4, 160)
images = st.builds(make_image, sides, sides, st.integers(0, 999))
videos = st.builds(make_video, st.integers(2, 14), sides, sides, st.integers(0, 999))
rates = st.sampled_from([1.0, 2.0, 7.5, 12.0, 29.97])
bounds = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"min_pixels": st.integers(800, 6000), "max_pixels": st.integers(6000, 30000)}),
    st.builds(
        lambda least, most: {"size": {"shortest_edge": least, "longest_edge": most}},
        st.integers(800, 6000),
        st.integers(6000, 60000),
    ),
)
sampling = st.sampled_from([{"fps": 2.0}, {"fps": 0.7}, {"fps": 5}, {"num_frames": 2}, {"num_frames": 4}])


@given(
    parts=st.lists(st.one_of(words, images, st.tuples(videos, rates)), min_size=1, max_size=6),
    bounds=bounds,
    sampling=sampling,
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_equals_the_hf_processor(
    llm: LLM, process: Process, ask_hf: Callable[..., Any], parts: list[Any], bounds: Any, sampling: Any
) -> None:
    """Text, images and videos of random sizes, lengths and rates, any count and order, with a request's arguments.

    Same token ids, same grids, the same pixels of videos bit for bit; images, which are resized by torchvision
    there and by Pillow here, within a byte on average.
    """
    images = [part for part in parts if isinstance(part, Image.Image)]
    videos = [part for part in parts if isinstance(part, tuple)]
    text = "x" + "".join(
        part if isinstance(part, str) else IMAGE if isinstance(part, Image.Image) else VIDEO for part in parts
    )
    asked = {"fps": None, **sampling} if is_third(llm) else sampling  # overrides transformers' own default
    want = ask_hf(
        llm.engine.context.model_path,
        text=text,
        images=images or None,
        videos=[frames for frames, _ in videos] or None,
        video_metadata=[{"total_num_frames": len(frames), "fps": fps} for frames, fps in videos] or None,
        do_sample_frames=True,
        **bounds,
        **asked,
    )
    too_few = any(len(frames) < sampling.get("num_frames", 0) for frames, _ in videos)
    assume(not (isinstance(want, Exception) and (too_few or isinstance(want, IndexError))))  # it steps past the end
    media = {"image": images, "video": [(frames, {"fps": fps}) for frames, fps in videos]}
    got = process(text, media, **bounds, **sampling)
    assert got.token_ids == want["input_ids"][0].tolist()
    for modality, pixels in (("image", "pixel_values"), ("video", "pixel_values_videos")):
        features = [feature for feature in got.features if feature.modality == modality]
        if not features:
            continue
        grids = torch.stack([feature.data[f"{modality}_grid_thw"].data for feature in features])
        assert grids.tolist() == want[f"{modality}_grid_thw"].tolist()
        values = torch.cat([feature.data[pixels].data for feature in features])
        difference = (values - torch.from_numpy(want[pixels])).abs()
        assert difference.max() == 0 if modality == "video" else difference.mean() < 1 / 255 / 0.26
    if "second_per_grid_ts" in want:
        assert [f.data["second_per_grid_ts"].data for f in got.features if f.modality == "video"] == list(
            want["second_per_grid_ts"]
        )


@pytest.mark.parametrize(
    ("architecture", "form"),
    [
        ("Qwen2VLForConditionalGeneration", "separate"),
        ("Qwen2VLForConditionalGeneration", "nested"),
        ("Qwen2VLForConditionalGeneration", "images' alone"),
        ("Qwen2VLForConditionalGeneration", "images' alone, old names"),
        ("Qwen3VLForConditionalGeneration", "separate"),
        ("Qwen3VLForConditionalGeneration", "nested"),
    ],
)
def test_processor_files(tmp_path: Path, ask_hf: Callable[..., Any], architecture: Any, form: str) -> None:
    """Every form in which checkpoints have their processors' settings, read as transformers reads it."""
    path = make_tiny_checkpoint(tmp_path, architecture=architecture)
    images, videos = path / "preprocessor_config.json", path / "video_preprocessor_config.json"
    image, video = json.loads(images.read_text()), json.loads(videos.read_text())
    if form == "nested":
        nested = {"image_processor": image, "video_processor": video, "processor_class": image["processor_class"]}
        (path / "processor_config.json").write_text(json.dumps(nested))
        images.unlink()
        videos.unlink()
    elif form != "separate":
        videos.unlink()
    if form.endswith("old names"):
        del image["size"]
        images.write_text(json.dumps(image | {"min_pixels": 2500, "max_pixels": 11000}))
    frames, photo = make_video(6, 90, 60, 0), make_image(80, 60, 0)
    want = ask_hf(
        path, text=IMAGE + VIDEO, images=[photo], videos=[frames], do_sample_frames=True, num_frames=4, fps=None,
        video_metadata=[{"total_num_frames": 6, "fps": 2.0}],
    )  # fmt: skip
    with LLM(str(path), dtype="float32") as llm:
        media = {"image": photo, "video": (frames, {"fps": 2.0})}
        prompt = {"prompt": IMAGE + VIDEO, "multi_modal_data": media, "mm_processor_kwargs": {"num_frames": 4}}
        got = llm.engine.input_processor.process(prompt)
    assert got.token_ids == want["input_ids"][0].tolist()
    assert np.array_equal(got.features[1].data["pixel_values_videos"].data, want["pixel_values_videos"])


def test_unusual_processor_files(tmp_path: Path) -> None:
    """Settings that are not supported are refused, so is a checkpoint without any; it cannot set our own."""
    with pytest.raises(CheckpointError, match="do_resize=False"):
        QWEN2.of_checkpoint({"do_resize": False})
    assert QWEN2.of_checkpoint({"sampling_asked": True, "bounds_all_frames": True}) == QWEN2
    with pytest.raises(CheckpointError, match=r"put preprocessor_config\.json there"):
        QwenVLProcessor.from_pretrained(tmp_path, QWEN3)


# --- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"min_pixels": 5000, "max_pixels": 4000}, "min_pixels=5000 is above max_pixels=4000"),
        ({"size": {"shortest_edge": 9, "longest_edge": 8}}, "min_pixels=9 is above max_pixels=8"),
        ({"size": {"height": 9}}, "size .*'shortest_edge'.*'longest_edge'"),
        ({"pixels": 5, "dpi": 3}, f"'dpi', 'pixels' .*{', '.join(ACCEPTED)}"),
        ({"fps": 0}, "fps .*got 0"),
        ({"fps": float("nan")}, "fps .*got nan"),
        ({"fps": "2"}, "fps .*got '2'"),
        ({"fps": 1, "num_frames": 4}, "fps or num_frames"),
        ({"max_pixels": -1}, "max_pixels .*got -1"),
        ({"num_frames": True}, "num_frames .*got True"),
        ({"do_sample_frames": 1}, "do_sample_frames .*got 1"),
    ],
)
def test_arguments_that_make_no_sense(process: Process, kwargs: dict[str, Any], message: str) -> None:
    """One line each, whatever item they are for, before anything is processed; other arguments have no effect."""
    for text, media in ((IMAGE, {"image": make_image(40, 40, 0)}), (VIDEO, {"video": make_video(4, 40, 40, 0)})):
        if text == IMAGE and kwargs.keys() <= {*ACCEPTED} - {*FOR_IMAGES}:
            assert process(text, media, **kwargs).features[0].identifier == process(text, media).features[0].identifier
            continue
        with pytest.raises(ProcessorKwargsError, match=message) as caught:
            process(text, media, **kwargs)
        assert "\n" not in str(caught.value)


def test_arguments_of_videos_are_not_images(process: Process) -> None:
    """Another `fps` leaves the image as it is in the cache, and samples the video anew; `max_pixels` is for both.

    A group is for one of them. Tokens are transformers' in any case (see the tests of processing).
    """
    media = {"image": make_image(90, 60, 0), "video": (make_video(8, 60, 90, 0), {"fps": 4.0})}

    def identifiers(**kwargs: Any) -> list[str]:
        return [feature.identifier for feature in process(IMAGE + VIDEO, media, **kwargs).features]

    image, video = identifiers()
    other_image, slower = identifiers(fps=1)
    assert (other_image, identifiers(videos_kwargs={"fps": 1})) == (image, [image, slower])
    assert slower != video
    smaller = identifiers(max_pixels=7840)
    assert not {image, video} & {*smaller}
    assert identifiers(images_kwargs={"max_pixels": 7840}) == [smaller[0], video]
    with pytest.raises(ProcessorKwargsError, match="images_kwargs: 'fps'"):
        identifiers(images_kwargs={"fps": 1})


def test_frames_that_make_no_sense(process: Process) -> None:
    """The same for the numbers of frames; `max_frames` alone lowers the checkpoint's `min_frames`."""
    media = {"video": (make_video(8, 40, 40, 0), {"fps": 4.0})}
    with pytest.raises(ProcessorKwargsError, match=r"min_frames=9 .*max_frames=8"):
        process(VIDEO, media, min_frames=9, max_frames=8)
    assert process(VIDEO, media, max_frames=2).features[0].data["video_grid_thw"].data[0] == 1


def test_none_is_no_argument(process: Process) -> None:
    """As in transformers, None stands for the checkpoint's value."""
    media = {"video": (make_video(8, 40, 40, 0), {"fps": 4.0})}
    plain = process(VIDEO, media)
    assert process(VIDEO, media, fps=None, max_pixels=None, num_frames=None).token_ids == plain.token_ids


def test_one_bound_alone(llm: LLM, process: Process) -> None:
    """`max_pixels` alone counts, even below the checkpoint's minimum; so does `min_pixels`, up to its maximum."""
    side = 32 if is_third(llm) else 28
    grid = (
        process(IMAGE, {"image": make_image(400, 400, 0)}, max_pixels=side**2).features[0].data["image_grid_thw"].data
    )
    assert grid.tolist() == [1, 2, 2]
    grid = (
        process(IMAGE, {"image": make_image(9, 9, 0)}, min_pixels=9 * side**2).features[0].data["image_grid_thw"].data
    )
    assert grid.tolist() == [1, 6, 6]
    with pytest.raises(ProcessorKwargsError, match=r"min_pixels=10000000 .*max_pixels="):
        process(IMAGE, {"image": make_image(9, 9, 0)}, min_pixels=10**7)


@pytest.mark.parametrize("kwargs", [{"max_pixels": "many"}, {"dpi": 3}, {"min_pixels": 9, "max_pixels": 8}])
def test_operators_mistakes(tmp_path: Path, kwargs: dict[str, Any]) -> None:
    """Found at start."""
    with pytest.raises(ProcessorKwargsError, match="mm_processor_kwargs: "):
        LLM(str(make_tiny_checkpoint(tmp_path)), dtype="float32", mm_processor_kwargs=kwargs)


def test_operators_bounds(tmp_path: Path) -> None:
    """Arguments given at start hold for every request and for the dummies; a request's override them."""
    path = make_tiny_checkpoint(tmp_path)
    with LLM(str(path), dtype="float32", mm_processor_kwargs={"max_pixels": 784, "max_frames": 2}) as llm:
        assert llm.engine.input_processor.mm_processor.profile.max_tokens == {"image": 32, "video": 32}
        prompt: dict[str, Any] = {"prompt": IMAGE, "multi_modal_data": {"image": make_image(300, 300, 0)}}
        assert llm.engine.input_processor.process(prompt).features[0].placeholder.length == 1
        prompt["mm_processor_kwargs"] = {"max_pixels": 784 * 9}
        assert llm.engine.input_processor.process(prompt).features[0].placeholder.length == 9


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_bound_below_the_operators_size(tmp_path: Path, architecture: str) -> None:
    """A request's `max_pixels` below the operator's fewest pixels makes transformers' tokens, and no more than planned.

    Larger items become as small as the request says; smaller ones still grow to the operator's fewest pixels.
    """
    path = make_tiny_checkpoint(tmp_path, architecture=architecture)
    reference = QwenReference(path)
    size = {"shortest_edge": 12 * 32 * 32, "longest_edge": 24 * 32 * 32}
    given = {"max_pixels": 2 * 32 * 32}
    with LLM(str(path), dtype="float32", mm_processor_kwargs={"size": size}) as llm:
        inputs = llm.engine.input_processor
        counts: dict[str, list[int]] = {"image": [], "video": []}
        for side in (20, 50, 300):
            video = make_video(4, side, side, 0), {"fps": 2.0}
            for modality, text, item in (("image", IMAGE, make_image(side, side, 0)), ("video", VIDEO, video)):
                media: dict[str, list[Any]] = {modality: [item]}
                prompt = {"prompt": text, "multi_modal_data": media, "mm_processor_kwargs": given}
                processed = inputs.process(prompt)
                want = reference.process(text, media, {"size": size, **given})
                assert processed.token_ids == token_ids_of(want)
                counts[modality].append(processed.features[0].placeholder.num_embeds)
        for modality, found in counts.items():
            assert max(found) <= inputs.mm_processor.profile.max_tokens[modality]
        small, _, large = counts["image"]
        assert large <= 2 < 12 <= small


def test_operators_groups(tmp_path: Path) -> None:
    """Arguments of one modality bound its dummy only."""
    path = make_tiny_checkpoint(tmp_path)
    groups = {"images_kwargs": {"max_pixels": 784}, "videos_kwargs": {"max_frames": 2}}
    with LLM(str(path), dtype="float32", mm_processor_kwargs=groups) as llm:
        inputs = llm.engine.input_processor
        most = inputs.mm_processor.profile.max_tokens
        assert (most["image"], most["video"] > 32) == (32, True)
        media = {"image": make_image(300, 300, 0), "video": (make_video(8, 60, 90, 0), {"fps": 4.0})}
        image, video = inputs.process({"prompt": IMAGE + VIDEO, "multi_modal_data": media}).features
        assert (image.placeholder.length, video.data["video_grid_thw"].data[0]) == (1, 1)


# --- limits ---------------------------------------------------------------------------------------------------------


def test_nothing_exceeds_the_worst_case(llm: LLM, process: Process) -> None:
    """No size of image or video, very long ones included, becomes more tokens than memory is planned for."""
    most = llm.engine.input_processor.mm_processor.profile.max_tokens
    chosen = random.Random(0)
    for _ in range(60):
        width = chosen.randint(1, 300)
        height = min(300, max(1, round(width * 200 ** chosen.uniform(-1, 1))))
        if max(width, height) > 200 * min(width, height):
            continue
        image = process(IMAGE, {"image": make_image(width, height, 0)}).features[0]
        assert image.placeholder.length <= most["image"]
        frames = np.zeros((chosen.randint(1, 40), height, width, 3), np.uint8)
        video = process(VIDEO, {"video": (frames, {"fps": chosen.choice([1.0, 4.0, 30.0])})}).features[0]
        assert video.placeholder.num_embeds <= most["video"]


def test_too_large_an_image(process: Process) -> None:
    """A request that would enlarge an image to more tokens than fit is refused before processing."""
    with pytest.raises(PromptTooLongError, match=r"40 x 40 pixels .* max_model_len=4096"):
        process(IMAGE, {"image": make_image(40, 40, 0)}, min_pixels=10**12, max_pixels=10**12)


@pytest.mark.parametrize("size", [(201, 1), (2, 500)])
def test_sides_that_the_processor_does_not_take(process: Process, size: tuple[int, int]) -> None:
    """As transformers has it, 200 times as long as wide at most; the error names the size."""
    with pytest.raises(ValueError, match="absolute aspect ratio must be smaller than 200"):
        transformers.Qwen2VLImageProcessorPil()([make_image(*size, 0)])
    with pytest.raises(MediaError, match=rf"{size[0]} x {size[1]} pixels: "):
        process(IMAGE, {"image": make_image(*size, 0)})


def test_items_side_by_side(llm: LLM) -> None:
    """Two placeholders of one modality with nothing between them are refused; mixed and separate ones are not."""
    params = SamplingParams(temperature=0, max_tokens=2)
    images, video = [make_image(60, 60, i) for i in range(2)], make_video(4, 60, 60, 0)
    prompt = {"prompt": "<|image_pad|><|image_pad|>", "multi_modal_data": {"image": images}}
    with pytest.raises(PlaceholderError, match="image 0 and 1"):
        llm.generate(prompt, params, use_tqdm=False)
    for text in ("<|image_pad|><|video_pad|>", "<|image_pad|>,<|video_pad|><|image_pad|>"):
        media = {"image": images[: text.count("image")], "video": video}
        assert llm.generate({"prompt": text, "multi_modal_data": media}, params, use_tqdm=False)[0].finished


def test_dummies_are_as_large_as_the_operator_plans(llm: LLM) -> None:
    """Sides and frames of `limit_mm_per_prompt`; without them, the largest."""
    make = partial(
        llm.engine.input_processor.mm_processor.hooks.get_dummy_mm_data, seq_len=512, mm_counts={"image": 1, "video": 1}
    )
    bounds = {"image": {"width": 56}, "video": {"num_frames": 2, "width": 84, "height": 56}}
    largest, bounded = make(mm_options={}), make(mm_options=bounds)
    assert bounded["image"][0].size == (56, largest["image"][0].height)
    assert bounded["video"][0][0].shape == (2, 56, 84, 3)
    assert largest["image"][0].width > 56
    assert largest["video"][0][0].size > bounded["video"][0][0].size
