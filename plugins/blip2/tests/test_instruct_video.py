"""What is InstructBLIP's with videos: which frames are taken, and that the Q-Former reads the prompt beside each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from corellm import LLM, SamplingParams
from corellm.errors import (
    CheckpointError,
    ItemLimitError,
    MediaError,
    ProcessorKwargsError,
    PromptTooLongError,
    UnsupportedModalityError,
)
from corellm_blip2.instruct.tiny import make_tiny_checkpoint as make_instructblip
from corellm_blip2.instruct_video.hf_oracle import hf_process
from corellm_blip2.instruct_video.tiny import make_tiny_checkpoint

WHAT, WHERE = "What is happening in the video?", "where?"
GREEDY = SamplingParams(temperature=0, max_tokens=8, min_tokens=8)

Frames = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint, not to be written to."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("video"))


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    """The checkpoint, loaded."""
    with LLM(str(checkpoint), dtype="float32") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Any:
    """The oracle of tokens."""
    return transformers.InstructBlipVideoForConditionalGeneration.from_pretrained(
        checkpoint, dtype=torch.float32
    ).eval()


def make_video(count: int = 4, seed: int = 1, width: int = 40, height: int = 30) -> Frames:
    """Noise, each frame another."""
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def prompt_of(text: str, video: Any, **more: Any) -> dict[str, Any]:
    return {"prompt": text, "multi_modal_data": {"video": video}, **more}


def tokens(llm: LLM, *prompts: Any) -> list[list[int]]:
    """Greedy outputs of one batch."""
    return [output.outputs[0].token_ids for output in llm.generate(list(prompts), GREEDY, use_tqdm=False)]


def expected(reference: Any, checkpoint: Path, text: str, frames: Frames, **other: Any) -> list[int]:
    """Transformers' greedy tokens for a prompt with these four frames."""
    inputs = {name: torch.from_numpy(array) for name, array in hf_process(checkpoint, text, frames).items()}
    output = reference.generate(**{**inputs, **other}, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    chosen: list[int] = output[0].tolist()[-8:]
    return chosen


def pixels(llm: LLM, video: Any) -> Frames:
    """What the encoder gets of a video, `[4, 3, height, width]`."""
    (feature,) = llm.engine.input_processor.process(prompt_of(WHAT, video)).features
    array: Frames = feature.data["pixel_values"].data.numpy()
    return array


def edit(file: Path, **changes: Any) -> None:
    """Write other values into a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


# --- outputs -------------------------------------------------------------------------------------------------------


def test_videos_and_instructions_of_one_batch(llm: LLM, checkpoint: Path, reference: Any) -> None:
    """Each video beside each question has transformers' tokens, no two alike, and again from caches."""
    asked = [(text, make_video(seed=seed)) for text in (WHAT, WHERE, "") for seed in (1, 2)]
    want = [expected(reference, checkpoint, *one) for one in asked]
    assert len(set(map(tuple, want))) == len(asked)
    for _ in range(2):
        assert tokens(llm, *(prompt_of(*one) for one in asked)) == want


def test_the_order_of_frames_counts(llm: LLM, checkpoint: Path, reference: Any) -> None:
    """The same frames backwards are another video."""
    video = make_video()
    want = [expected(reference, checkpoint, WHAT, frames) for frames in (video, video[::-1])]
    assert want[0] != want[1]
    assert tokens(llm, prompt_of(WHAT, video), prompt_of(WHAT, video[::-1])) == want


def test_a_conversation_is_its_texts(llm: LLM, checkpoint: Path, reference: Any) -> None:
    """The output of a conversation's last turn is transformers' for all texts, line by line."""
    video = make_video()
    messages = [
        {"role": "user", "content": [{"type": "text", "text": WHAT}, {"type": "video", "video": video}]},
        {"role": "assistant", "content": "A man irons."},
        {"role": "user", "content": WHERE},
    ]
    (output,) = llm.chat(messages, GREEDY, use_tqdm=False)
    assert output.outputs[0].token_ids == expected(reference, checkpoint, f"{WHAT}\nA man irons.\n{WHERE}", video)


def test_a_request_may_give_the_qformer_another_text(llm: LLM, checkpoint: Path, reference: Any) -> None:
    """The output is transformers' for that instruction beside this prompt, also where the prompt is too long for it."""
    video, asked = make_video(), {"mm_processor_kwargs": {"qformer_text": WHERE}}
    other = {name: torch.from_numpy(array) for name, array in hf_process(checkpoint, WHERE, None).items()}
    instruction = {name: tensor for name, tensor in other.items() if name.startswith("qformer_")}
    want = expected(reference, checkpoint, WHAT, video, **instruction)
    assert want != expected(reference, checkpoint, WHAT, video)
    assert tokens(llm, prompt_of(WHAT, video, **asked)) == [want]
    with pytest.raises(PromptTooLongError, match=r"video 0: .* 513 tokens, and 512 at most; .*'qformer_text'"):
        tokens(llm, prompt_of("a " * 511, video))
    assert tokens(llm, prompt_of("a " * 511, video, **asked))


# --- frames --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 30, 101])
def test_frames_are_at_the_starts_of_quarters(llm: LLM, checkpoint: Path, count: int) -> None:
    """As in transformers' example for the model; of a video of fewer than four, some come several times."""
    video = make_video(count)
    taken = video[np.arange(0, count, count / 4).astype(int)]
    assert len(taken) == 4
    assert np.array_equal(pixels(llm, video), hf_process(checkpoint, WHAT, taken)["pixel_values"][0])


@pytest.mark.parametrize(("width", "height"), [(56, 56), (1, 1), (3, 90), (500, 4), (133, 77), (56, 20)])
def test_frames_of_any_size(llm: LLM, checkpoint: Path, width: int, height: int) -> None:
    """They are resized to the same pixels, bit for bit, as by torchvision's code."""
    video = make_video(width=width, height=height)
    want = hf_process(checkpoint, WHAT, video)["pixel_values"][0]
    assert want.shape == (4, 3, 56, 56)
    assert np.array_equal(pixels(llm, video), want)


def test_forms_of_a_video(llm: LLM, checkpoint: Path, reference: Any, tmp_path: Path) -> None:
    """An array, a list of images, frames with their rate, a file and its bytes have transformers' tokens."""
    video = make_video(9)
    taken = video[[0, 2, 4, 6]]
    images = [Image.fromarray(frame) for frame in video]
    want = expected(reference, checkpoint, WHAT, taken)
    forms = (video, images, list(video), (video, {"fps": 3}), video[None], torch.from_numpy(video))
    assert tokens(llm, *(prompt_of(WHAT, form) for form in forms)) == [want] * len(forms)

    file = tmp_path / "noise.mp4"
    with av.open(file, "w") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width, stream.height, stream.pix_fmt = 40, 30, "yuv420p"
        for frame in video:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    with av.open(file) as opened:
        decoded = np.stack([frame.to_ndarray(format="rgb24") for frame in opened.decode(video=0)])
    want = expected(reference, checkpoint, WHAT, decoded[[0, 2, 4, 6]])
    assert len(decoded) == 9
    assert tokens(llm, prompt_of(WHAT, str(file)), prompt_of(WHAT, file.read_bytes())) == [want] * 2


def test_a_sample_is_taken_as_it_is(llm: LLM, checkpoint: Path) -> None:
    """Of four frames, whatever their places; sampled again only if the request says so."""
    video = make_video(8)
    of_hundred = {"fps": 10, "total_num_frames": 100}
    four = (video[:4], {**of_hundred, "frames_indices": [0, 3, 50, 99]})
    assert np.array_equal(pixels(llm, four), pixels(llm, video[:4]))
    again = (video, {**of_hundred, "frames_indices": list(range(0, 80, 10)), "do_sample_frames": True})
    assert np.array_equal(pixels(llm, again), pixels(llm, video[::2]))


@pytest.mark.parametrize("count", [3, 6])
@pytest.mark.parametrize("stated", [{"do_sample_frames": False}, {"frames_indices": True}])
def test_another_number_of_frames_is_refused(llm: LLM, count: int, stated: Mapping[str, Any]) -> None:
    """Both numbers are said, and a way out that works."""
    known: dict[str, Any] = {"fps": 10, **stated}
    if "frames_indices" in known:
        known |= {"frames_indices": list(range(count)), "total_num_frames": 100}
    with pytest.raises(MediaError, match=rf"video 0: {count} frames .* takes 4; .*'do_sample_frames': True"):
        pixels(llm, (make_video(count), known))
    assert len(pixels(llm, (make_video(count), {**known, "do_sample_frames": True}))) == 4


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kwargs", [{"colour": 1}, {"size": {"height": 28, "width": 28}}, {"num_frames": 8}])
def test_arguments_are_refused(llm: LLM, kwargs: dict[str, Any]) -> None:
    """Transformers' processor takes none for videos: sizes and numbers of frames are the checkpoint's."""
    with pytest.raises(ProcessorKwargsError, match=f"video 0: mm_processor_kwargs: .*'{next(iter(kwargs))}'"):
        tokens(llm, prompt_of(WHAT, make_video(), mm_processor_kwargs=kwargs))


def test_other_items_are_refused(llm: LLM) -> None:
    """Images, and a second video."""
    with pytest.raises(UnsupportedModalityError, match=r"image.*video"):
        tokens(llm, {"prompt": WHAT, "multi_modal_data": {"image": Image.new("RGB", (40, 30))}})
    with pytest.raises(ItemLimitError, match="2 videos in the request, at most 1"):
        tokens(llm, prompt_of(WHAT, [make_video(), make_video(seed=2)]))
    with pytest.raises(MediaError, match="video 0: "):
        tokens(llm, prompt_of(WHAT, b"no video"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"do_resize": False}, "do_resize=False, .*do_resize=True"),
        ({"do_rescale": False}, "do_rescale=False, .*do_rescale=True"),
        ({"do_normalize": False}, "do_normalize=False, .*do_normalize=True"),
        ({"do_center_crop": True, "crop_size": {"height": 28, "width": 28}}, "do_center_crop=True, .*=False"),
        ({"resample": 2}, "resample=2, .*resample=3"),
        ({"size": {"shortest_edge": 56}}, "size={'shortest_edge': 56}; give it a height and a width"),
    ],
)
def test_settings_that_are_not_served(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    """Refused at load, with what the checkpoint asks for and what it may ask for."""
    with pytest.raises(CheckpointError, match=words):
        LLM(str(make_tiny_checkpoint(tmp_path, settings=settings)))


def test_settings_that_are_served(tmp_path: Path) -> None:
    """Other means and deviations, another scale, another size than a square: pixels are transformers'."""
    settings = {
        "size": {"height": 28, "width": 70},
        "image_mean": [0.1, 0.2, 0.3],
        "image_std": [0.5, 0.4, 0.2],
        "rescale_factor": 1 / 128,
    }
    path = make_tiny_checkpoint(tmp_path, settings=settings)
    want = hf_process(path, WHAT, make_video())["pixel_values"][0]
    assert want.shape == (4, 3, 28, 70)
    with LLM(str(path), dtype="float32") as llm:
        assert np.array_equal(pixels(llm, make_video()), want)
        assert tokens(llm, prompt_of(WHAT, make_video()))


def test_t5_is_refused_with_a_model_to_take(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'t5', an encoder-decoder, .*instructblip-vicuna-7b"):
        LLM(str(make_tiny_checkpoint(tmp_path, text="t5")))


# --- checkpoints ---------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_instructblip(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its weights take videos as well: all that is to be said is which model it is to be."""
    path = make_instructblip(tmp_path)
    capfd.readouterr()
    image = 400
    as_video = {"architectures": ["InstructBlipVideoForConditionalGeneration"]}
    with LLM(str(path), dtype="float32", hf_overrides=as_video) as llm:
        (output,) = llm.generate([prompt_of(WHAT, make_video())], GREEDY, use_tqdm=False)
    assert "instructblip" not in capfd.readouterr().err
    assert output.prompt_token_ids[:33] == [*[image] * 32, 0]

    # transformers makes no processor of these files, and reads the configuration's type
    images = json.loads((path / "processor_config.json").read_text())["image_processor"]
    (path / "preprocessor_config.json").write_text(json.dumps(images))
    edit(path / "config.json", model_type="instructblipvideo")
    model = transformers.InstructBlipVideoForConditionalGeneration.from_pretrained(
        path, dtype=torch.float32, video_token_index=image
    ).eval()
    ids = torch.tensor([output.prompt_token_ids])
    assert output.outputs[0].token_ids == expected(model, path, WHAT, make_video(), input_ids=ids)


def test_a_checkpoint_without_a_token(tmp_path: Path) -> None:
    """Neither tokenizer nor configuration knows the video: refused, and served once the advice is taken."""
    path = make_tiny_checkpoint(tmp_path)
    added = json.loads((path / "tokenizer.json").read_text())["added_tokens"]
    edit(path / "tokenizer.json", added_tokens=[token for token in added if token["content"] != "<video>"])
    edit(path / "config.json", video_token_index=None)
    with pytest.raises(CheckpointError, match=r'names no video token, .*"video_token_index": 400'):
        LLM(str(path))
    edit(path / "config.json", video_token_index=400)
    with LLM(str(path), dtype="float32") as llm:
        assert tokens(llm, prompt_of(WHAT, make_video()))


def test_a_checkpoint_without_settings(tmp_path: Path) -> None:
    path = make_tiny_checkpoint(tmp_path, settings_in="preprocessor_config.json")
    (path / "preprocessor_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no processor configuration; put preprocessor_config\.json there"):
        LLM(str(path))
