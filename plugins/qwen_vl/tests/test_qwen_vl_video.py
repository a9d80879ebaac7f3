"""Videos of Qwen2-VL to Qwen3-VL: which frames are taken, and their times; files; very short and very long videos.

The oracle is transformers' own processor, which is given all frames of a video at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image

from corellm import LLM, SamplingParams
from corellm.errors import MediaError, MediaTooLargeError, ProcessorKwargsError, PromptTooLongError
from corellm.multimodal import Video
from corellm_qwen_vl.settings import QWEN2, QWEN3
from corellm_qwen_vl.tiny import make_tiny_checkpoint
from corellm_qwen_vl.video_processor import process_video

VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"
Process = Callable[..., Any]


@pytest.fixture(
    scope="module",
    params=["Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration", "Qwen3VLForConditionalGeneration"],
)
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A loaded model of each generation."""
    path = make_tiny_checkpoint(tmp_path_factory.mktemp("qwen"), architecture=request.param)
    with LLM(str(path), dtype="float32", media_timeout=300) as llm:
        yield llm


@pytest.fixture
def process(llm: LLM) -> Process:
    """`process(video, **processor kwargs)`: the expanded prompt and its one item."""

    def process(video: Any, **kwargs: Any) -> Any:
        prompt = {"prompt": VIDEO, "multi_modal_data": {"video": video}, "mm_processor_kwargs": kwargs}
        return llm.engine.input_processor.process(prompt)

    return process


def is_third(llm: LLM) -> bool:
    """Whether it is Qwen3-VL."""
    return llm.engine.context.hf_config.model_type == "qwen3_vl"


def make_video(num_frames: int, width: int = 60, height: int = 40, seed: int = 0) -> np.ndarray[Any, Any]:
    """Noise, each frame another."""
    return np.random.default_rng(seed).integers(0, 256, (num_frames, height, width, 3), dtype=np.uint8)


def write_video(path: Path, frames: Any, rate: int, times: list[int] | None = None) -> Path:
    """An H.264 file; `times` in frames of `rate`, where they are not 0, 1, 2, ..."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = frames[0].shape[1], frames[0].shape[0], "yuv420p"
        stream.codec_context.time_base = Fraction(1, rate)
        for i, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = (times[i] if times else i), Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def smooth(num_frames: int, width: int = 64, height: int = 48) -> list[np.ndarray[Any, Any]]:
    """A moving bar, which a codec preserves."""
    frames = np.full((num_frames, height, width, 3), 60, np.uint8)
    for i, frame in enumerate(frames):
        frame[:, (3 * i) % width : (3 * i) % width + 9] = (200, 40 + i % 200, 90)
    return list(frames)


def text_of(llm: LLM, token_ids: list[int]) -> str:
    """The prompt's text without vision tokens."""
    text: str = llm.engine.context.tokenizer.decode(token_ids)
    return text.replace("<|video_pad|>", "").replace("<|vision_start|>", "").replace("<|vision_end|>", "")


# --- which frames ---------------------------------------------------------------------------------------------------

SAMPLE = (make_video(4), {"fps": 10.0, "frames_indices": [0, 9, 21, 39], "total_num_frames": 40})
ALL, SOME, CAPPED = {"do_sample_frames": False}, {"do_sample_frames": True}, {"cap_pixels_per_frame": True}
TAKEN: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "a rate": ((make_video(20), {"fps": 5.0}), {}, SOME),
    "a rate, but all wanted": ((make_video(9), {"fps": 5.0, **ALL}), {}, ALL),
    "all wanted by the request": ((make_video(9), {"fps": 5.0}), ALL, ALL),
    "an array": (make_video(9), {}, {}),
    "images": ([Image.fromarray(frame) for frame in make_video(7)], {}, {}),
    "an array, so many": (make_video(9), {"num_frames": 4}, {**SOME, "num_frames": 4, "fps": None}),
    "a rate, so many": ((make_video(9), {"fps": 3.0}), {"num_frames": 6}, {**SOME, "num_frames": 6, "fps": None}),
    "a rate, denser": ((make_video(12), {"fps": 6.0}), {"fps": 4}, {**SOME, "fps": 4}),
    "a sample": (SAMPLE, {}, ALL),
    "a sample, whatever is asked": (SAMPLE, {"fps": 7}, ALL),
    "more than the most": ((make_video(60), {"fps": 2.0}), {}, SOME),
    "fewer than the least": ((make_video(3), {"fps": 1.0}), {}, SOME),
    "capped": ((make_video(8), {"fps": 2.0}), CAPPED, {**SOME, **CAPPED}),
}
"""`name: (video, our arguments, transformers' arguments)`."""


@pytest.mark.parametrize("name", TAKEN)
def test_frames_taken(llm: LLM, process: Process, ask_hf: Callable[..., Any], name: str) -> None:
    """The rules of the README, each against transformers with explicit arguments."""
    video, ours, theirs = TAKEN[name]
    frames, metadata = video if isinstance(video, tuple) else (video, None)
    pixels = np.stack([np.asarray(frame) for frame in frames])
    if theirs.get("do_sample_frames") and not is_third(llm):
        theirs = {"fps": 2.0 if theirs.get("num_frames") is None else None, **theirs}
    if metadata is not None:
        metadata = {"total_num_frames": len(pixels), "frames_indices": list(range(len(pixels))), **metadata}
        metadata.pop("do_sample_frames", None)
    want = ask_hf(
        llm.engine.context.model_path, text=VIDEO, videos=[pixels], video_metadata=metadata and [metadata], **theirs
    )
    got = process(video, **ours)
    data = got.features[0].data
    assert got.token_ids == want["input_ids"][0].tolist()
    assert np.array_equal(data["pixel_values_videos"].data, want["pixel_values_videos"])
    if "second_per_grid_ts" in want:
        assert data["second_per_grid_ts"].data == want["second_per_grid_ts"][0]


def test_the_rate_is_needed(llm: LLM, process: Process) -> None:
    """Frames without a rate cannot be sampled by `fps`, except by Qwen3-VL, which assumes 24."""
    if is_third(llm):
        assert process(make_video(48), fps=4).features[0].data["video_grid_thw"].data[0] == 4
        return
    with pytest.raises(ProcessorKwargsError, match=r"\(frames, \{'fps': 25\}\), or num_frames"):
        process(make_video(8), fps=4)
    with pytest.raises(ProcessorKwargsError, match=r"num_frames=9, .* 3 frames"):
        process(make_video(3), num_frames=9)


def test_one_frame(llm: LLM, process: Process, tmp_path: Path) -> None:
    """A file, an array and a list of a single frame, all the way to output tokens."""
    file = write_video(tmp_path / "one.mp4", smooth(1), 25)
    for video in (str(file), make_video(1), [Image.fromarray(make_video(1)[0])], (make_video(1), {"fps": 30.0})):
        assert process(video).features[0].data["video_grid_thw"].data[0] == 1
        prompt = {"prompt": f"{VIDEO}what?", "multi_modal_data": {"video": video}}
        assert llm.generate(prompt, SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)[0].finished


def test_a_single_frame_equals_two_alike(process: Process) -> None:
    """A single frame is repeated."""
    frame = make_video(1)
    once, twice = process(frame), process(np.concatenate([frame, frame]), do_sample_frames=False)
    first, second = (x.features[0].data["pixel_values_videos"].data for x in (once, twice))
    assert torch.equal(first, second)


# --- files ----------------------------------------------------------------------------------------------------------


def test_a_real_file(llm: LLM, process: Process, ask_hf: Callable[..., Any], tmp_path: Path) -> None:
    """Six seconds of H.264, by path, by bytes: what transformers makes of the decoded frames; and output tokens."""
    file = write_video(tmp_path / "bar.mp4", smooth(150), 25)
    with av.open(str(file)) as container:
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    asked = {"do_sample_frames": True, **({} if is_third(llm) else {"fps": 2.0})}
    metadata = [{"total_num_frames": 150, "fps": 25.0}]
    want = ask_hf(llm.engine.context.model_path, text=VIDEO, videos=[frames], video_metadata=metadata, **asked)
    for video in (str(file), file.read_bytes()):
        got = process(video)
        assert got.token_ids == want["input_ids"][0].tolist()
        values, expected = got.features[0].data["pixel_values_videos"].data, want["pixel_values_videos"]
        assert np.abs(values.numpy() - expected).mean() < 1 / 255 / 0.26  # YUV to RGB may round otherwise
    if is_third(llm):
        assert text_of(llm, got.token_ids).startswith("<0.3 seconds><1.4 seconds><2.4 seconds>")
    prompt = {"prompt": f"{VIDEO}what?", "multi_modal_data": {"video": str(file)}}
    assert llm.generate(prompt, SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)[0].finished


def test_time_stamps_of_a_varying_rate(tmp_path: Path) -> None:
    """Where the rate varies, the container's times are used; else frame number by rate."""
    path = make_tiny_checkpoint(tmp_path / "model", architecture="Qwen3VLForConditionalGeneration")
    pause = write_video(tmp_path / "pause.mp4", smooth(8), 10, times=[0, 1, 2, 3, 80, 81, 82, 83])
    with LLM(str(path), dtype="float32") as llm:
        prompt: dict[str, Any] = {"prompt": VIDEO, "multi_modal_data": {"video": str(pause)}}
        prompt["mm_processor_kwargs"] = {"do_sample_frames": False}
        tokens = llm.engine.input_processor.process(prompt).token_ids
        # 0 and 0.1; 0.2 and 0.3; 8 and 8.1; 8.2 and 8.3, to one digit as Python rounds
        assert text_of(llm, tokens) == "<0.1 seconds><0.2 seconds><8.1 seconds><8.2 seconds>"


def test_ten_minutes(llm: LLM, tmp_path: Path) -> None:
    """`max_frames` bounds the frames of a long video; for more than planned it must be given at start."""
    file = str(write_video(tmp_path / "long.mp4", smooth(1200, 48, 32), 2))
    process = llm.engine.input_processor.process
    prompt: dict[str, Any] = {"prompt": VIDEO, "multi_modal_data": {"video": file}}
    assert process(prompt).features[0].data["video_grid_thw"].data[0] == 8  # the tiny checkpoint's max_frames
    few = {"size": {"shortest_edge": 2048, "longest_edge": 1024 * (768 if is_third(llm) else 2)}, "max_frames": 768}
    path = str(llm.engine.context.model_path)
    with LLM(path, dtype="float32", media_timeout=300, mm_processor_kwargs=few) as longer:
        feature = longer.engine.input_processor.process(prompt).features[0]
    assert feature.data["video_grid_thw"].data[0] == 384


def test_too_long_a_prompt(llm: LLM, process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused by its size alone: no frame is read."""
    monkeypatch.setattr(Video, "read", lambda *_: pytest.fail("a frame was read"))
    video = (np.zeros((300, 40, 40, 3), np.uint8), {"fps": 1.0})
    with pytest.raises(PromptTooLongError, match=r"^video 0: .* 300 frames .* max_model_len=4096"):
        process(video, max_frames=300, size={"shortest_edge": 10**9, "longest_edge": 10**9})
    with pytest.raises(MediaTooLargeError, match=r"video 0: .* 300 frames .* max_frames=16"):
        process(video, do_sample_frames=False)
    with pytest.raises(MediaError, match="video 0"):
        process((np.zeros((4, 1, 300, 3), np.uint8), {"fps": 1.0}))


# --- pixels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [QWEN2, QWEN3], ids=["2", "3"])
def test_frames_are_not_kept(settings: Any) -> None:
    """Whatever the length of a video, a few of its frames are in memory at a time."""
    given: list[weakref.ref[Any]] = []
    most = 0

    class Frame(np.ndarray):  # a plain array cannot be referred to weakly
        pass

    def read(indices: Any) -> Iterator[Any]:
        nonlocal most
        for _ in indices:
            frame = np.zeros((108, 192, 3), np.uint8).view(Frame)
            given.append(weakref.ref(frame))
            most = max(most, sum(reference() is not None for reference in given))
            yield frame

    metadata = SimpleNamespace(
        total_num_frames=64, fps=2.0, width=192, height=108, frames_indices=None, do_sample_frames=None
    )
    video: Any = SimpleNamespace(
        metadata=metadata, num_frames=64, read=read, timestamps=lambda indices: [index / 2 for index in indices]
    )
    got = process_video(video, settings, None)
    assert got["video_grid_thw"][0, 0] == 32
    assert 0 < most <= 4


def test_resizing_is_bicubic(process: Process) -> None:
    """Against Pillow, which transformers' processor does not use for videos: a smooth image, within two bytes."""
    ramp = Image.linear_gradient("L").resize((90, 75))
    image = Image.merge("RGB", (ramp, ramp.rotate(180), ramp.transpose(Image.Transpose.FLIP_LEFT_RIGHT)))
    data = process([image, image], do_sample_frames=False).features[0].data
    _, high, wide = data["video_grid_thw"].data.tolist()
    values = data["pixel_values_videos"].data
    patch = round((values.shape[1] / 6) ** 0.5)
    mean, std = ((0.5,) * 3, (0.5,) * 3) if patch == 16 else (QWEN2.image_mean, QWEN2.image_std)
    want = np.asarray(image.resize((wide * patch, high * patch), Image.Resampling.BICUBIC), np.float32)
    want = (want / 255 - np.float32(mean)) / np.float32(std)
    blocks = values.view(high // 2, wide // 2, 2, 2, 3, 2, patch, patch)[..., 0, :, :]  # of the first frame
    whole = blocks.permute(0, 2, 5, 1, 3, 6, 4).reshape(high * patch, wide * patch, 3)
    assert np.abs(whole.numpy() - want).max() < 2.01 / 255 / 0.26
