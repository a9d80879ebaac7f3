"""Molmo's images at their published size, and the family's conversations. The oracle shares nothing with the plugin."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from corellm import LLM, SamplingParams
from corellm.errors import CheckpointError, ItemLimitError, ProcessorKwargsError
from corellm.tiny_checkpoints import train_tokenizer
from corellm_molmo.config import VISION
from corellm_molmo.processor import MolmoImageProcessor, MolmoProcessor
from corellm_molmo.reference import PlainMolmo, PlainProcessor
from corellm_molmo.tiny import make_tiny_checkpoint
from corellm_molmo.tokenizer import load_tokenizer
from corellm_testing.items import make_image


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[MolmoImageProcessor, PlainProcessor]:
    """Both processors with the published settings, which are their defaults, too."""
    path = make_tiny_checkpoint(tmp_path_factory.mktemp("published"))
    (path / "preprocessor_config.json").write_text("{}")
    return MolmoProcessor(path, load_tokenizer(path), VISION).image_processor, PlainProcessor(path)


SIZES = [
    *((336, 336), (1, 1), (112, 112), (113, 900), (900, 113), (111, 3000), (3000, 111), (536, 354), (1000, 560)),
    *((672, 448), (700, 3000), (3100, 300), (2000, 7)),
]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("max_crops", [12, 5])
def test_published_size(
    published: tuple[MolmoImageProcessor, PlainProcessor], size: tuple[int, int], max_crops: int
) -> None:
    """Crops of 336 pixels with margins of four patches: pixels, masks, places and tokens, bit for bit."""
    ours, plain = published
    image = make_image(*size, seed=sum(size))
    got, want = ours(image, max_crops), plain("", [image], max_crops)
    for name, tensor in got.items():
        assert tensor.dtype == want[name].dtype, name
        assert torch.equal(tensor, want[name]), name


def test_numbers_of_tokens(published: tuple[MolmoImageProcessor, PlainProcessor]) -> None:
    """From one crop to twelve in a column, which is the largest image; bounds make it another."""
    ours, plain = published
    assert ours.largest({}) == (336, 2800)
    for size, rows_and_columns, count in (((50, 50), (1, 1), 316), ((336, 2800), (12, 1), 1460)):
        assert ours.tiling(*size) == rows_and_columns
        assert len(plain("", [make_image(*size)])["image_tokens"]) == count
    assert ours.largest({"height": 500}) == (2800, 336)
    assert ours.largest({}, max_crops=2) == (336, 560)


def test_narrower_than_a_pixel(published: tuple[MolmoImageProcessor, PlainProcessor]) -> None:
    """Where the published processor fails, a line is left in the whole image."""
    ours, plain = published
    image = make_image(1000, 2)
    with pytest.raises(RuntimeError):
        plain("", [image])
    whole = ours(image)["images"][0].unflatten(0, (24, 24)).unflatten(2, (14, 14, 3))  # [24, 24, 14, 14, 3]
    rows = whole.transpose(1, 2).reshape(336, 336, 3)
    black = rows[0, 0]
    assert [i for i in range(336) if not torch.equal(rows[i], black.expand(336, 3))] == [167]


@pytest.mark.parametrize("decoder", ["qwen2", "olmo2"])
def test_patches_of_padding(tmp_path: Path, decoder: str) -> None:
    """Images with patches that are padding, wholly and in part, give the plain forward pass's tokens."""
    path = make_tiny_checkpoint(tmp_path, decoder=decoder)
    processor, model = PlainProcessor(path), PlainMolmo(path)
    with LLM(str(path), dtype="float32") as llm:
        for size in ((150, 33), (33, 150), (300, 40)):
            image, text = make_image(*size, seed=size[0]), " User: What is it? Assistant:"
            inputs = processor(text, [image])
            masks = inputs["image_masks"]
            assert {(masks == 0).any().item(), ((masks > 0) & (masks < 1)).any().item()} == {True}
            want = model.generate(inputs, 6, never=processor.end)
            request = {"prompt": text, "multi_modal_data": {"image": image}}
            params = SamplingParams(temperature=0, max_tokens=6, min_tokens=6, logprobs=0)
            output = llm.generate([request], params, use_tqdm=False)[0].outputs[0]
            assert output.logprobs is not None
            assert list(output.token_ids) == want[0]
            got = [place[token].logprob for place, token in zip(output.logprobs, output.token_ids, strict=True)]
            assert got == pytest.approx(want[1], abs=1e-4)


# --- requests -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with LLM(str(make_tiny_checkpoint(tmp_path_factory.mktemp("molmo"))), dtype="float32") as model:
        yield model


def chat(llm: LLM, *turns: str, **options: Any) -> Any:
    """A conversation with an image in its first message."""
    image = {"type": "image", "image": make_image(90, 70, 1)}
    messages: list[Any] = [
        {"role": "assistant" if i % 2 else "user", "content": [{"type": "text", "text": text}]}
        for i, text in enumerate(turns)
    ]
    messages[0]["content"].append(image)
    return llm.engine.input_processor.process_chat(messages, **options)


def test_conversations(llm: LLM) -> None:
    """Prompts are the published processor's: the end of text, the image, a space before the first role."""
    plain, image = PlainProcessor(llm.engine.context.model_path), make_image(90, 70, 1)
    for turns, text in (
        (("What is it?",), " User: What is it? Assistant:"),
        (("What?", "A cat.", "Where?"), " User: What? Assistant: A cat. User: Where? Assistant:"),
    ):
        got = chat(llm, *turns)
        assert got.text == text
        assert got.token_ids == plain(text, [image])["input_ids"]
        assert got.token_ids[0] == llm.engine.context.tokenizer.eos_token_id
        assert got.features[0].placeholder.offset == 1


def test_conversations_without_a_template(tmp_path: Path) -> None:
    """A checkpoint without one has the same prompts."""
    with LLM(str(make_tiny_checkpoint(tmp_path, has_template=False)), dtype="float32") as model:
        assert chat(model, "What?", "A cat.", "Where?").text == " User: What? Assistant: A cat. User: Where? Assistant:"


def test_operators_template_has_priority(llm: LLM) -> None:
    """A chat template given at the call is taken as it is."""
    template = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
    got = chat(llm, "?", chat_template=template)
    assert (got.text, len(got.features)) == ("[?]", 1)


@pytest.mark.parametrize("value", [0, -1, 101, 2.5, "3"])
def test_numbers_of_crops_that_are_none(llm: LLM, value: Any) -> None:
    """They are refused by name."""
    request = {"prompt": "x", "multi_modal_data": {"image": make_image(90, 70)}}
    with pytest.raises(ProcessorKwargsError, match="max_crops"):
        llm.generate([{**request, "mm_processor_kwargs": {"max_crops": value}}], use_tqdm=False)


def test_a_second_image_is_refused(llm: LLM) -> None:
    """The published processor would add its patches to the first one's."""
    request = {"prompt": "x", "multi_modal_data": {"image": [make_image(9, 9)] * 2}}
    with pytest.raises(ItemLimitError, match="at most 1"):
        llm.generate([request], use_tqdm=False)


def test_numbers_of_crops_at_start(tmp_path: Path) -> None:
    """The operator's are checked, too."""
    with pytest.raises(ProcessorKwargsError, match=r"max_crops .* got 0"):
        LLM(str(make_tiny_checkpoint(tmp_path)), mm_processor_kwargs={"max_crops": 0})
    with pytest.raises(ProcessorKwargsError, match="'crops'; known: max_crops"):
        LLM(str(tmp_path), mm_processor_kwargs={"crops": 3})


def test_the_tokenizer_of_another_model(tmp_path: Path) -> None:
    """One without the family's tokens is refused."""
    path = make_tiny_checkpoint(tmp_path / "molmo")
    train_tokenizer([]).save_pretrained(tmp_path / "tokenizer")
    with pytest.raises(CheckpointError, match="<im_start>, <im_end>, <im_patch>, <im_col>"):
        LLM(str(path), tokenizer=str(tmp_path / "tokenizer"))


def test_settings_of_another_model(tmp_path: Path) -> None:
    """The processor's file has to be of the same checkpoint as the configuration."""
    path = make_tiny_checkpoint(tmp_path)
    file = path / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "image_patch_size": 12}))
    with pytest.raises(CheckpointError, match=r"12 pixels .*48 pixels, .* 8"):
        LLM(str(path), dtype="float32")
