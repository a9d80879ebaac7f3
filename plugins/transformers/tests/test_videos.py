"""Videos: a processor gets the frames that it samples, and the model's outputs are those of transformers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from PIL import Image

from corellm import LLM, SamplingParams
from corellm.errors import MediaError, MediaTooLargeError
from corellm.multimodal import Video, VideoMetadata
from corellm_transformers import processors
from corellm_transformers.tiny import make_tiny_checkpoint
from corellm_transformers.videos import processed

SIDE = 56


def pixels(seed: int, frames: int = 12) -> NDArray[np.uint8]:
    """Frames of noise."""
    return np.random.default_rng(seed).integers(0, 256, (frames, 40, 60, 3), dtype=np.uint8)


class Recorded:
    """Frames, and which of them were decoded."""

    times = None

    def __init__(self, frames: NDArray[np.uint8]) -> None:
        self.frames = frames
        self.decoded = list[int]()

    def read(self, numbers: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
        for number in numbers:
            self.decoded.append(number)
            yield self.frames[number].copy()

    def video(self, **known: Any) -> Video:
        """The video of these frames, of four a second."""
        count = len(self.frames)
        metadata = VideoMetadata(known.pop("total_num_frames", count), 4.0, 60, 40, count / 4, **known)
        return Video(self, metadata, max_frames=100, content=())


class Sampler:
    """A processor of videos that takes every third frame, or all, in the size of the model."""

    def __init__(self) -> None:
        self.metadata: list[Mapping[str, Any]] = []

    def __call__(
        self,
        videos: Sequence[Any],
        video_metadata: Sequence[Mapping[str, Any]] = (),
        do_sample_frames: bool | None = True,
        **_: Any,
    ) -> dict[str, Any]:
        """Return `pixel_values_videos`, `[videos, frames, 3, 56, 56]`."""
        if any(known["fps"] is None for known in video_metadata):
            raise ValueError("frames need a rate")
        self.metadata = list(video_metadata)
        taken = [video[np.arange(0, len(video), 3)] if do_sample_frames else video for video in videos]
        sampled = [torch.from_numpy(video) for video in taken]
        images = [[Image.fromarray(frame.numpy()).resize((SIDE, SIDE)) for frame in video] for video in sampled]
        values = np.stack([np.stack([np.asarray(image) for image in video]) for video in images])
        return {"pixel_values_videos": torch.from_numpy(values).permute(0, 1, 4, 2, 3) / 128 - 1}


def test_only_the_frames_that_a_processor_samples_are_decoded() -> None:
    """It gets them as if it had had all."""
    recorded, sampler = Recorded(pixels(1)), Sampler()
    output = processed(sampler, [recorded.video()], {})
    assert recorded.decoded == [0, 3, 6, 9]
    assert sampler.metadata[0]["frames_indices"] == list(range(12))
    assert torch.equal(output["pixel_values_videos"], sampler([pixels(1)])["pixel_values_videos"])


@pytest.mark.parametrize(
    "known", [{"do_sample_frames": False}, {"frames_indices": tuple(range(5, 41, 3)), "total_num_frames": 50}]
)
def test_a_sample_is_not_sampled_again(known: dict[str, Any]) -> None:
    """Nor are frames of which the user says so."""
    recorded, sampler = Recorded(pixels(1)), Sampler()
    output = processed(sampler, [recorded.video(**known)], {})
    assert output["pixel_values_videos"].shape[1] == 12
    assert recorded.decoded == list(range(12))
    assert sampler.metadata[0]["frames_indices"] == list(known.get("frames_indices", range(12)))


def test_a_request_says_whether_frames_are_sampled() -> None:
    """Its argument counts, not the video's wish; a processor that takes all frames gets them."""
    video = Recorded(pixels(1)).video(do_sample_frames=False)
    assert processed(Sampler(), [video], {"do_sample_frames": True})["pixel_values_videos"].shape[1] == 4

    def all_frames(videos: Sequence[Any], **_: Any) -> dict[str, Any]:
        return {"sum": sum(float(np.asarray(frames).astype(np.float32).sum()) for frames in videos)}

    assert processed(all_frames, [Recorded(pixels(1)).video()], {}) == {
        "sum": float(pixels(1).astype(np.float32).sum())
    }


def test_frames_that_memory_does_not_hold() -> None:
    """They are refused before one is decoded."""
    recorded = Recorded(pixels(1))
    metadata = VideoMetadata(12, 4.0, 10_000, 10_000, 3.0, do_sample_frames=False)
    with pytest.raises(MediaTooLargeError, match="give fewer frames"):
        processed(Sampler(), [Video(recorded, metadata, max_frames=100, content=())], {})
    assert not recorded.decoded


def checkpoint(path: Path, monkeypatch: pytest.MonkeyPatch, videos: Any) -> str:
    """A model whose videos are processed so, without torchvision."""
    read = processors.read_processor

    def with_videos(path: Path) -> Any:
        processor = read(path)
        processor.video_processor = videos
        return processor

    monkeypatch.setattr(processors, "read_processor", with_videos)
    return str(make_tiny_checkpoint(path, architecture="LlavaOnevisionForConditionalGeneration"))


@pytest.fixture
def llm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    """Such a model."""
    with LLM(checkpoint(tmp_path, monkeypatch, Sampler()), dtype="float32", max_model_len=600) as loaded:
        yield loaded


def test_outputs_are_those_of_transformers(llm: LLM) -> None:
    """Requests with a video, another one, and one beside an image are equal; frames without a rate are refused."""
    processor = llm.engine.context.hf_processor
    model = transformers.LlavaOnevisionForConditionalGeneration.from_pretrained(
        llm.engine.context.model_path, dtype=torch.float32
    ).eval()
    image = Image.fromarray(pixels(9)[0])
    found = []
    for seed, images in ((1, []), (2, []), (1, [image])):
        text = f"{'<image>' * len(images)} <video>What?"
        given = {"images": images} if images else {}
        inputs = processor(
            text=text, videos=[pixels(seed)], video_metadata=[{"fps": 4.0}], return_tensors="pt", **given
        )
        want = model.generate(**inputs, max_new_tokens=6, min_new_tokens=6, do_sample=False)[0]
        prompt = {"prompt": text, "multi_modal_data": {"video": (pixels(seed), {"fps": 4.0}), "image": images}}
        (output,) = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=6, ignore_eos=True), use_tqdm=False)
        assert [*output.prompt_token_ids, *output.outputs[0].token_ids] == want.tolist()
        found.append(tuple(output.outputs[0].token_ids))
    assert len(set(found)) == 3
    with pytest.raises(MediaError, match="frames need a rate"):
        llm.generate({"prompt": "<video>What?", "multi_modal_data": {"video": pixels(1)}}, use_tqdm=False)


def test_a_model_whose_videos_differ_is_served_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says why; images are taken as ever."""

    class Halved(Sampler):
        def __call__(self, videos: Sequence[Any], *args: Any, **given: Any) -> dict[str, Any]:
            values = super().__call__(videos, *args, **given)["pixel_values_videos"]
            return {"pixel_values_videos": values[:, :, :, : SIDE // 2]}  # fewer patches than the tower takes

    with LLM(checkpoint(tmp_path, monkeypatch, Halved()), dtype="float32", max_model_len=600) as llm:
        assert list(llm.engine.input_processor.mm_processor.limits) == ["image"]
    assert "no video items are taken" in caplog.text
