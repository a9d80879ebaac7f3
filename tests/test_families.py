"""What every family does alike: conversations with media in order, files as people have them, one line per mistake."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from PIL import Image
from sklearn.datasets import load_sample_images

from corellm import LLM, SamplingParams
from corellm.errors import (
    CheckpointError,
    CorellmError,
    InvalidParameterError,
    ItemLimitError,
    MediaError,
    ProcessorKwargsError,
    PromptTooLongError,
    RequestError,
)
from corellm.multimodal import MultiModalFeature
from corellm.plugin.adapters import AdapterEntry
from tests.fixtures import random_image

GREEDY = SamplingParams(temperature=0, max_tokens=4)


@dataclass(frozen=True)
class Family:
    """An architecture, and what it takes."""

    module: str
    options: dict[str, Any]
    modalities: tuple[str, ...]
    several: bool = True
    """Items in one prompt."""


FAMILIES = {
    "llava": Family("corellm_llava.tiny", {}, ("image",)),
    "fuyu": Family("corellm_fuyu.tiny", {}, ("image",), several=False),
    "blip": Family("corellm_blip.tiny", {}, ("image",), several=False),
    "blip2": Family("corellm_blip2.tiny", {}, ("image",), several=False),
    "kosmos2": Family("corellm_kosmos2.tiny", {}, ("image",), several=False),
    "kosmos2_5": Family("corellm_kosmos2.kosmos2_5.tiny", {}, ("image",), several=False),
    "instructblip": Family("corellm_blip2.instruct.tiny", {}, ("image",), several=False),
    "instructblipvideo": Family("corellm_blip2.instruct_video.tiny", {}, ("video",), several=False),
    "florence2": Family("corellm_florence2.tiny", {}, ("image",), several=False),
    "deepseek_vl2": Family("corellm_deepseek_vl2.tiny", {}, ("image",)),
    "molmo": Family("corellm_molmo.tiny", {}, ("image",), several=False),
    "gemma3": Family("corellm_gemma3.tiny", {}, ("image",)),
    "git": Family("corellm_git.tiny", {}, ("image",), several=False),
    "mllama": Family("corellm_mllama.tiny", {}, ("image",)),
    "paligemma": Family("corellm_paligemma.tiny", {}, ("image",)),
    "chameleon": Family("corellm_chameleon.tiny", {}, ("image",)),
    "idefics": Family("corellm_idefics.tiny", {}, ("image",)),
    "idefics2": Family("corellm_idefics2.tiny", {}, ("image",)),
    "internvl": Family("corellm_internvl.tiny", {}, ("image",)),
    "qwen2_vl": Family("corellm_qwen_vl.tiny", {"architecture": "Qwen2VLForConditionalGeneration"}, ("image", "video")),
    "qwen2_5_vl": Family(
        "corellm_qwen_vl.tiny", {"architecture": "Qwen2_5_VLForConditionalGeneration"}, ("image", "video")
    ),
    "qwen3_vl": Family("corellm_qwen_vl.tiny", {"architecture": "Qwen3VLForConditionalGeneration"}, ("image", "video")),
    "qwen_vl": Family("corellm_qwen_vl.original.tiny", {}, ("image",)),
    "qwen2_audio": Family("corellm_qwen_audio.tiny", {}, ("audio",)),
    "voxtral": Family("corellm_voxtral.tiny", {}, ("audio",)),
}
WITH_VIDEO = [name for name, family in FAMILIES.items() if "video" in family.modalities]

Load = Callable[..., LLM]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    """`load(family, template=True)`: a tiny model of it, loaded once; without its chat templates if so wished."""
    loaded: dict[tuple[str, bool], LLM] = {}
    stack = ExitStack()

    def get(name: str, template: bool = True) -> LLM:
        if (name, template) not in loaded:
            family = FAMILIES[name]
            path = tmp_path_factory.mktemp(name)
            importlib.import_module(family.module).make_tiny_checkpoint(path, **family.options)
            if not template:
                remove_templates(path)
            loaded[name, template] = stack.enter_context(LLM(str(path)))
        return loaded[name, template]

    with stack:
        yield get


def remove_templates(path: Path) -> None:
    """Take every chat template out of a checkpoint."""
    (path / "chat_template.jinja").unlink(missing_ok=True)
    shutil.rmtree(path / "additional_chat_templates", ignore_errors=True)
    for file in path.glob("*.json"):
        content = json.loads(file.read_text())
        if isinstance(content, dict) and content.pop("chat_template", None):
            file.write_text(json.dumps(content))


def make_video(seed: int, frames: int = 6) -> np.ndarray[Any, Any]:
    """Noise, `[frames, 48, 64, 3]`."""
    return np.random.default_rng(seed).integers(0, 256, (frames, 48, 64, 3), dtype=np.uint8)


def item(modality: str, seed: int) -> Any:
    """A small item, nothing like another seed's."""
    if modality == "image":
        return random_image(60 + 3 * seed, 50, seed)
    if modality == "video":
        return (make_video(seed), {"fps": 4})
    return (np.random.default_rng(seed).uniform(-0.5, 0.5, 3000 + 400 * seed).astype(np.float32), 16_000)


def shown(feature: MultiModalFeature) -> dict[str, Any]:
    """An item's tensors without what InstructBLIP's encoder reads of the prompt beside it."""
    return {name: elem for name, elem in feature.data.items() if name != "qformer_input_ids"}


@pytest.mark.parametrize("template", [True, False], ids=["template", "no-template"])
@pytest.mark.parametrize("name", FAMILIES)
def test_conversation_with_media_in_order(load: Load, name: str, template: bool) -> None:
    """Items of a conversation have their places in order, and there are output tokens."""
    family, llm = FAMILIES[name], load(name, template)
    modalities = list(family.modalities * 2)[: 4 if family.several else 1]
    media = [item(modality, seed) for seed, modality in enumerate(modalities)]
    parts = [{"type": modality, modality: medium} for modality, medium in zip(modalities, media, strict=True)]
    first, last = parts[:-1], parts[-1:]
    messages = [
        {"role": "user", "content": [*first, {"type": "text", "text": "What is this?"}]},
        {"role": "assistant", "content": "A red circle."},
        {"role": "user", "content": [{"type": "text", "text": "And"}, *last, {"type": "text", "text": "this?"}]},
    ]
    processed = llm.engine.input_processor.process_chat(messages)
    assert [feature.modality for feature in processed.features] == modalities

    def alone(modality: str, medium: Any) -> dict[str, Any]:
        content = [{"type": modality, modality: medium}, {"type": "text", "text": "?"}]
        (feature,) = llm.engine.input_processor.process_chat([{"role": "user", "content": content}]).features
        return shown(feature)

    assert [*map(shown, processed.features)] == [alone(*pair) for pair in zip(modalities, media, strict=True)]
    (output,) = llm.chat(messages, GREEDY, use_tqdm=False)
    assert output.prompt_token_ids == processed.token_ids
    assert output.outputs[0].token_ids


def chat_of_turns(family: Family, turns: int) -> list[dict[str, Any]]:
    """A conversation whose turns are of different lengths; every other one has an item, where it may."""
    messages: list[dict[str, Any]] = []
    for i in range(turns):
        modality = family.modalities[i % len(family.modalities)]
        medium = [{"type": modality, modality: item(modality, i)}] if i % 2 and family.several else []
        messages.append({"role": "user", "content": [*medium, {"type": "text", "text": "What is it? " * (1 + i % 3)}]})
        messages.append({"role": "assistant", "content": "Red. " * (i % 4 + 1)})
    return messages[:-1]


@pytest.mark.parametrize("name", FAMILIES)
def test_windows_keep_the_newest_turns(load: Load, name: str) -> None:
    """The prompt is that of as many of the newest turns as fit, whatever the number of tokens."""
    family, llm = FAMILIES[name], load(name)
    inputs, messages = llm.engine.input_processor, chat_of_turns(family, 5)
    is_own = name == "qwen_vl"  # leaves turns out itself: images keep their numbers
    prompts = [inputs.process_chat(messages[-(2 * k + 1) :]) for k in range(5)]
    sizes = [len(prompt.token_ids) for prompt in prompts]
    assert sizes == sorted(set(sizes))
    assert family.several == any(prompt.features for prompt in prompts)
    for wanted, most, longer in zip(prompts, sizes, [*sizes[1:], sizes[-1] + 100], strict=True):
        for window in (most, longer - 1):
            got = inputs.process_chat(messages, max_window_size=window)
            assert len(got.token_ids) == most
            assert [f.identifier for f in got.features] == [f.identifier for f in wanted.features]
            assert got.token_ids == wanted.token_ids or is_own
    with pytest.raises(PromptTooLongError, match=f"{sizes[0]} tokens, .*max_window_size={sizes[0] - 1}"):
        inputs.process_chat(messages, max_window_size=sizes[0] - 1)


@pytest.mark.parametrize("template", [True, False])
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "florence2"])
def test_a_continued_message_stays_open(load: Load, name: str, template: bool) -> None:
    """Nothing that the family puts behind every prompt ends it, with an item and without."""
    family, llm = FAMILIES[name], load(name, template)
    inputs, decode = llm.engine.input_processor, llm.get_tokenizer().decode
    modality, begun_text = family.modalities[0], "It is a red cir"
    spelled = begun_text.lower() if name in {"blip", "git"} else begun_text  # tokenizers that know no capitals
    for medium in ([], [{"type": modality, modality: item(modality, 1)}]):
        asked = {"role": "user", "content": [*medium, {"type": "text", "text": "What is it?"}]}
        messages = [asked, {"role": "assistant", "content": begun_text}]
        begun = inputs.process_chat(messages, continue_final_message=True)
        assert decode(begun.token_ids).endswith(spelled)


def test_an_encoder_decoder_continues_no_message(load: Load) -> None:
    """Its encoder reads the conversation; what is begun would be part of the question."""
    messages = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "It is a red cir"}]
    with pytest.raises(InvalidParameterError, match="whole conversation") as refused:
        load("florence2").engine.input_processor.process_chat(messages, continue_final_message=True)
    assert refused.value.param == "continue_final_message"


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
@pytest.mark.parametrize("name", FAMILIES)
def test_typed_placeholders_bind_nothing(load: Load, name: str, role: str) -> None:
    """Whatever the role and whatever is allowed, text that stands for an item in a prompt is text in a message."""
    family, llm = FAMILIES[name], load(name)
    inputs, tokenizer = llm.engine.input_processor, llm.get_tokenizer()
    modality = family.modalities[0]
    profile = inputs.mm_processor.profile
    typed = llm.engine.input_processor.mm_processor.hooks.get_placeholder_str(modality=modality, index=0) or ""
    typed += "".join(tokenizer.convert_ids_to_tokens(list(profile.placeholder_token_ids)))
    medium = {"type": modality, modality: item(modality, 1)}
    counts = []
    for text in ("Mind that!", f"Mind {typed} that!"):
        messages = [
            {"role": role, "content": text},
            {"role": "user", "content": [medium, {"type": "text", "text": "?"}]},
        ]
        try:
            processed = inputs.process_chat(messages, allowed_special="all")
        except RequestError as error:
            assert f"role '{role}'" in str(error) or "chat template" in str(error)  # noqa: PT017
            return
        assert len(processed.features) == 1
        counts.append(sum(token in profile.placeholder_token_ids for token in processed.token_ids))
    assert counts[0] == counts[1]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A real photograph, a real video and real audio."""
    folder = tmp_path_factory.mktemp("media")
    photograph = Image.fromarray(load_sample_images().images[0])
    photograph.save(folder / "china.jpg")
    with av.open(folder / "pan.mp4", "w") as container:
        stream = container.add_stream("mpeg4", rate=12)
        stream.width, stream.height, stream.pix_fmt = 160, 120, "yuv420p"
        for i in range(24):
            window = photograph.crop((10 * i, 0, 10 * i + 320, 240)).resize((160, 120))
            container.mux(stream.encode(av.VideoFrame.from_image(window)))
        container.mux(stream.encode(None))
    tone = np.sin(np.arange(44_100) / 44_100 * 2 * np.pi * 440)
    soundfile.write(folder / "tone.flac", np.stack([tone, tone / 2], 1), 44_100)
    return {"image": folder / "china.jpg", "video": folder / "pan.mp4", "audio": folder / "tone.flac"}


@pytest.mark.parametrize(("name", "modality"), [(n, m) for n, f in FAMILIES.items() for m in f.modalities])
def test_real_files(load: Load, files: dict[str, Path], name: str, modality: str) -> None:
    """A photograph, a video and audio, as path and as bytes, give output tokens in every family that takes them."""
    llm = load(name)

    def run(medium: Any) -> Any:
        content = [{"type": modality, modality: medium}, {"type": "text", "text": "What is it?"}]
        (output,) = llm.chat([{"role": "user", "content": content}], GREEDY, use_tqdm=False)
        return output.prompt_token_ids, output.outputs[0].token_ids

    assert run(str(files[modality])) == run(files[modality].read_bytes())


def mistakes() -> Iterator[Any]:
    """`(family, request, error, words)`: mistakes of users."""
    tenth = b"\0\0\0\x18ftypmp42" + bytes(400)
    for name in WITH_VIDEO:
        yield name, {"video": tenth}, {}, MediaError, "video 0: the video is broken"
    for name in (name for name in WITH_VIDEO if FAMILIES[name].several):
        yield name, {"video": [make_video(0), b""]}, {}, MediaError, "video 1: the video is empty"
        kwargs = {"min_pixels": 10_000, "max_pixels": 5_000}
        yield name, {"image": item("image", 0)}, kwargs, ProcessorKwargsError, "min_pixels=10000 is above max_pixels"
        yield name, {"image": item("image", 0)}, {"max_pixel": 5_000}, ProcessorKwargsError, "accepted: .*max_pixels"
        yield name, {"video": make_video(0)}, {"fps": -1}, ProcessorKwargsError, "fps must"
    yield (
        "qwen2_audio",
        {"audio": (np.zeros(0, np.float32), 16_000)},
        {},
        MediaError,
        r"audio 0: .*empty \(0 samples\)",
    )
    yield "qwen2_audio", {"audio": b"RIFF"}, {}, MediaError, "audio 0: "
    yield (
        "blip2",
        {"image": [item("image", i) for i in range(3)]},
        {},
        ItemLimitError,
        "3 images in the request, at most 1",
    )
    yield "instructblipvideo", {"video": make_video(0)}, {"fps": 1}, ProcessorKwargsError, "does not take 'fps'"
    yield "fuyu", {"image": item("image", 0)}, {"colour": 1}, ProcessorKwargsError, "does not take 'colour'; known: "
    yield "llava", {"video": make_video(0)}, {}, RequestError, "no video; .*image"


@pytest.mark.parametrize(("name", "media", "kwargs", "error", "words"), list(mistakes()))
def test_mistakes_get_one_line(
    load: Load, name: str, media: dict[str, Any], kwargs: dict[str, Any], error: type[CorellmError], words: str
) -> None:
    """A typed error of one line that says what is wrong, and the next request has output."""
    llm = load(name)
    prompt = {"prompt": "What?", "multi_modal_data": media, "mm_processor_kwargs": kwargs}
    with pytest.raises(error, match=words) as raised:
        llm.generate([prompt], GREEDY, use_tqdm=False)
    assert "\n" not in str(raised.value)
    assert llm.generate(["What?"], GREEDY, use_tqdm=False)[0].outputs[0].token_ids


@pytest.mark.parametrize("name", WITH_VIDEO)
def test_a_video_of_one_frame(load: Load, name: str) -> None:
    """Arrays and lists of a single frame give output tokens."""
    llm = load(name)
    for frames in (make_video(0, 1), [Image.fromarray(make_video(0, 1)[0])], (make_video(0, 1), {"fps": 25})):
        content = [{"type": "video", "video": frames}, {"type": "text", "text": "?"}]
        (output,) = llm.chat([{"role": "user", "content": content}], GREEDY, use_tqdm=False)
        assert output.outputs[0].token_ids


def test_the_generic_adapter_refuses_an_encoder_of_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Florence-2 without its plugin: the error names the hook that says what its encoder reads."""
    path = importlib.import_module("corellm_florence2.tiny").make_tiny_checkpoint(tmp_path)
    generic = importlib.import_module("corellm_transformers")
    monkeypatch.setattr(AdapterEntry, "load", lambda _: getattr(generic, generic.__all__[0]))
    with pytest.raises(CheckpointError, match=r"Florence2ForConditionalGeneration .*get_encoder_states"):
        LLM(str(path))
