"""What is Fuyu's own: the layout of rows, sizes and processor arguments, conversations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from corellm import LLM, SamplingParams
from corellm.errors import (
    ItemLimitError,
    MediaError,
    ProcessorKwargsError,
    UnsupportedModalityError,
)
from corellm_fuyu.processor import load_processor
from corellm_fuyu.tiny import make_tiny_checkpoint

QUESTION = "What shape is in the picture?\n"
ANSWER = "<0x04>"


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A tiny Fuyu, loaded."""
    with LLM(str(make_tiny_checkpoint(tmp_path_factory.mktemp("fuyu"))), dtype="float32") as llm:
        yield llm


@pytest.fixture(scope="module")
def processor(llm: LLM) -> Any:
    """The Hugging Face processor of the same checkpoint: the oracle."""
    return load_processor(llm.engine.context.model_path)


def make_image(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def process(llm: LLM, prompt: Any, *images: Image.Image, **kwargs: Any) -> Any:
    """Our processing of one request; `prompt` is text or token ids."""
    key = "prompt" if isinstance(prompt, str) else "prompt_token_ids"
    return llm.engine.input_processor.process(
        {key: prompt, "multi_modal_data": {"image": list(images)}, "mm_processor_kwargs": kwargs}
    )


def assert_same(got: Any, want: Any) -> None:
    """Our processing against the Hugging Face processor's output for the same text and image."""
    assert got.token_ids == want["input_ids"][0].tolist()
    (feature,) = got.features
    patches = feature.data["image_patches"].data
    want_patches = want["image_patches"].reshape(-1, 30 * 30 * 3)  # a single patch loses its dimension there
    assert torch.equal(patches.flatten(0, 1), want_patches)
    assert feature.placeholder.num_embeds == len(want_patches)


@pytest.mark.parametrize("text", ["", "a b", QUESTION])
def test_token_ids_without_the_tokenizers_prefix(llm: LLM, processor: Any, text: str) -> None:
    """They become what the Hugging Face processor makes of the text."""
    image = make_image(100, 50)
    ids = processor.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert_same(process(llm, ids, image), processor(text=text, images=image, return_tensors="pt"))


def test_sides_are_for_the_processor_to_refuse(llm: LLM, processor: Any) -> None:
    """What transformers takes is taken; a side that it would scale to nothing is refused by name."""
    assert_same(
        process(llm, QUESTION, make_image(1, 205)),
        processor(text=QUESTION, images=make_image(1, 205), return_tensors="pt"),
    )
    with pytest.raises(ValueError, match="width=0"):
        processor(text=QUESTION, images=make_image(1, 500), return_tensors="pt")
    with pytest.raises(MediaError, match="image 0: 1 x 500 pixels"):
        process(llm, QUESTION, make_image(1, 500))


@pytest.mark.parametrize(
    ("width", "height", "rows", "columns"),
    [(100, 50, 2, 4), (30, 30, 1, 1), (1, 1, 1, 1), (31, 30, 1, 2), (240, 210, 7, 8), (2400, 2100, 7, 8),
     (2000, 10, 1, 8), (10, 2000, 7, 1), (241, 210, 7, 8), (500, 600, 7, 6)],
)  # fmt: skip
def test_layout(llm: LLM, processor: Any, width: int, height: int, rows: int, columns: int) -> None:
    """Rows of image tokens that end with a newline token, `<s>`, the prompt, the answer; embeddings at image tokens."""
    got = process(llm, QUESTION, make_image(width, height))
    row = ["|SPEAKER|"] * columns + ["|NEWLINE|"]
    block = [*row * rows, "<s>"]
    tokens = processor.tokenizer.convert_ids_to_tokens(got.token_ids)
    assert tokens == [*block, *processor.tokenizer.tokenize(QUESTION, add_special_tokens=False), ANSWER]
    (feature,) = got.features
    assert (feature.placeholder.offset, feature.placeholder.length) == (0, len(block))
    assert feature.placeholder.is_embed == tuple(token == "|SPEAKER|" for token in block)
    assert tuple(feature.data["image_patches"].data.shape) == (rows, columns, 30 * 30 * 3)
    assert len(block) <= llm.engine.input_processor.mm_processor.profile.max_tokens["image"]


@pytest.mark.parametrize("size", [{"height": 60, "width": 90}, {"height": 90, "width": 300}, 330, [60, 90]])
def test_dummy_is_the_worst_case(llm: LLM, size: Any) -> None:
    """With the operator's own size, too, the dummy takes as many tokens as any image can."""
    path = llm.engine.context.model_path
    with LLM(str(path), dtype="float32", mm_processor_kwargs={"size": size}) as other:
        most = other.engine.input_processor.mm_processor.profile.max_tokens["image"]
        lengths = [
            process(other, QUESTION, make_image(*shape)).features[0].placeholder.length
            for shape in ((1, 1), (90, 60), (300, 90), (330, 330), (500, 600), (600, 500), (18, 900), (900, 18))
        ]
    assert max(lengths) == most


@pytest.mark.parametrize(
    "kwargs",
    [
        {"size": {"height": 60, "width": 60}},
        {"size": 90},
        {"do_normalize": False, "do_rescale": False},
        {"image_mean": [0.1, 0.2, 0.3], "image_std": 0.3},
        {"resample": 0},
        {"padding_value": 0.0},
        {"padding_mode": "edge"},
    ],
    ids=str,
)
def test_processor_arguments(llm: LLM, processor: Any, kwargs: dict[str, Any]) -> None:
    """A request's `mm_processor_kwargs` mean what they mean to the Hugging Face processor, and are part of identity."""
    image = make_image(300, 270)
    got = process(llm, QUESTION, image, **kwargs)
    assert_same(got, processor(text=QUESTION, images=image, return_tensors="pt", **kwargs))
    assert got.features[0].identifier != process(llm, QUESTION, image).features[0].identifier


def test_images_as_large_as_they_are(llm: LLM, processor: Any) -> None:
    """A request may leave out resizing where its image has no more patches than planned."""
    small, large = make_image(130, 100), make_image(300, 270)
    got = process(llm, QUESTION, small, do_resize=False)
    assert_same(got, processor(text=QUESTION, images=small, return_tensors="pt", do_resize=False))
    planned = llm.engine.input_processor.mm_processor.profile.max_embeds["image"]
    with pytest.raises(ProcessorKwargsError, match=rf"^image 0: .* 90 embeddings, .* {planned} "):
        process(llm, QUESTION, large, do_resize=False)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"min_pixels": 100},
        {"size": {"height": 50, "width": 70}},
        {"size": {"shortest_edge": 60}},
        {"size": {"height": 60}},
        {"size": {"height": -60, "width": 60}},
        {"size": "large"},
        {"do_pad": False},
        {"image_mean": [0.1, 0.2]},
        {"patch_size": {"height": 15, "width": 15}},
    ],
    ids=str,
)
def test_impossible_processor_arguments(llm: LLM, kwargs: dict[str, Any]) -> None:
    """One line that names the argument, and the engine runs on."""
    with pytest.raises(ProcessorKwargsError, match=f"^image 0: mm_processor_kwargs.*{next(iter(kwargs))}") as caught:
        process(llm, QUESTION, make_image(100, 50), **kwargs)
    assert "\n" not in str(caught.value)


def chat_tokens(llm: LLM, messages: list[dict[str, Any]], **options: Any) -> tuple[list[str], int]:
    """A conversation's tokens, and how many images it has."""
    got = llm.engine.input_processor.process_chat(messages, **options)
    return llm.engine.context.tokenizer.convert_ids_to_tokens(got.token_ids), len(got.features)


def test_chat_with_an_image(llm: LLM, processor: Any) -> None:
    """A question about an image, wherever it stands among the parts, is the prompt that Fuyu was trained on."""
    image = make_image(100, 50)
    want = processor(text=QUESTION, images=image, return_tensors="pt")
    text, media = {"type": "text", "text": QUESTION.strip()}, {"type": "image", "image": image}
    for content in ([text, media], [media, text]):
        assert_same(llm.engine.input_processor.process_chat([{"role": "user", "content": content}]), want)
    assert llm.chat([{"role": "user", "content": [text, media]}], SamplingParams(max_tokens=3), use_tqdm=False)


def test_chat_turns(llm: LLM) -> None:
    """Every answer follows its token, also without an image; special tokens that a user types stay text."""
    tokens, count = chat_tokens(
        llm,
        [
            {"role": "user", "content": "A |SPEAKER| circle?"},
            {"role": "assistant", "content": "yes"},
            {"role": "user", "content": "no"},
        ],
    )
    assert count == 0
    assert tokens.count(ANSWER) == 2
    assert tokens[-1] == ANSWER
    assert tokens.count("<0x0A>") == 3
    assert tokens.count("|ENDOFTEXT|") == 1
    assert "|SPEAKER|" not in tokens
    assert chat_tokens(llm, [{"role": "user", "content": "no"}], add_generation_prompt=False)[0][-1] == "<0x0A>"


def test_chat_with_a_template(llm: LLM) -> None:
    """A chat template has priority; an image adds nothing to its text."""
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}!"
    content = [{"type": "image", "image": make_image(30, 30)}, {"type": "text", "text": "A"}]
    tokens, count = chat_tokens(llm, [{"role": "user", "content": content}], chat_template=template)
    assert (tokens, count) == (["|SPEAKER|", "|NEWLINE|", "<s>", "▁A", "!", ANSWER], 1)


def test_chat_limits(llm: LLM) -> None:
    """Two images in a conversation, or a video, are refused by name."""
    part = {"type": "image", "image": make_image(30, 30)}
    with pytest.raises(ItemLimitError, match="2 images"):
        chat_tokens(llm, [{"role": "user", "content": [part]}, {"role": "user", "content": [part]}])
    with pytest.raises(UnsupportedModalityError, match="video"):
        chat_tokens(llm, [{"role": "user", "content": [{"type": "video", "video": b"x"}]}])


def test_dummies_are_as_large_as_the_operator_plans(llm: LLM) -> None:
    """Sides of `limit_mm_per_prompt`; without them, the largest."""
    make = llm.engine.input_processor.mm_processor.hooks.get_dummy_mm_data
    (largest,) = make(seq_len=512, mm_counts={"image": 1}, mm_options={})["image"]
    (bounded,) = make(seq_len=512, mm_counts={"image": 1}, mm_options={"image": {"height": 7}})["image"]
    assert bounded.size == (largest.width, 7)
    assert largest.height > 7
