"""Marks and spaces around images as the processor writes them; splitting and sizes as planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoTokenizer, Idefics2ForConditionalGeneration

from corellm import LLM, SamplingParams
from corellm.errors import MediaError, MediaTooLargeError, ProcessorKwargsError
from corellm_idefics2.marks import Marks
from corellm_idefics2.processor import make_processor
from corellm_idefics2.tiny import make_tiny_checkpoint
from corellm_testing.items import make_image

MARK, IMAGE = "<fake_token_around_image>", "<image>"
PIECES = (
    *(IMAGE, IMAGE, MARK, "<end_of_utterance>", "</s>", "[INST]", " ", "  ", "\n", "\t", "\u00a0", "<b>", "< ", "What"),
    *("is", "one two", ".", "...", "?!\n", "é", "日本", "1", "\U0001f44d\U0001f3fd", "[", "\ufffd"),
)
NUM_TOKENS = 6


@pytest.fixture(scope="module", params=[False, True], ids=["first", "always"])
def tools(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Marks]:
    """Processor, tokenizer and marks; texts behind a special token begin with a space of the tokenizer's, or not."""
    path = make_tiny_checkpoint(tmp_path_factory.mktemp("idefics2"), legacy=request.param)
    processor, tokenizer = make_processor(path), AutoTokenizer.from_pretrained(path)
    for each in (processor.tokenizer, tokenizer):
        each.add_tokens(["[INST]"], special_tokens=True)
    return processor, tokenizer, Marks(tokenizer, IMAGE, MARK)


@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
@given(parts=st.lists(st.sampled_from(PIECES), min_size=1, max_size=9))
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_tokens_are_the_processors(tools: tuple[Any, Any, Marks], split: bool, parts: list[str]) -> None:
    """Of any text around any number of images and marks; a second time nothing changes, but where marks are shared."""
    processor, tokenizer, marks = tools
    text = "".join(parts)
    processor.image_processor.do_image_splitting = split
    put = marks.put(tokenizer(text)["input_ids"])
    own = marks.between(processor.image_seq_len * (5 if split else 1), processor.image_seq_len)
    expanded = [part for token in put for part in (own if token == marks.image_token_id else [token])]
    assert expanded == processor(text=text)["input_ids"][0]
    image, mark = marks.image_token_id, marks.mark_token_id
    shared = any(put[i : i + 3] == [image, mark, image] for i in range(len(put)))
    if not shared and MARK * 2 not in text:  # of three marks in a row the processor leaves two
        assert marks.put(put) == put


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose images are not split."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    """The engine."""
    with LLM(str(checkpoint), dtype="float32") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def splitting(checkpoint: Path) -> Iterator[LLM]:
    """An operator's engine that splits images."""
    with LLM(str(checkpoint), dtype="float32", mm_processor_kwargs={"do_image_splitting": True}) as loaded:
        yield loaded


def prompt(text: str, images: Sequence[Any], **kwargs: Any) -> dict[str, Any]:
    """A request."""
    return {"prompt": text, "multi_modal_data": {"image": list(images)}, "mm_processor_kwargs": kwargs}


def tokens_of(llm: LLM, prompts: Sequence[Any]) -> list[tuple[list[int], list[int]]]:
    """The tokens of prompts and outputs."""
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, min_tokens=NUM_TOKENS)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [(output.prompt_token_ids, output.outputs[0].token_ids) for output in outputs]


def test_special_tokens_in_messages_stay_text(llm: LLM) -> None:
    """Also in the word behind an image, which gets its space."""
    content = [{"type": "image", "image": make_image(40, 30)}, {"type": "text", "text": f"a{IMAGE}b{MARK}c d"}]
    params = SamplingParams(temperature=0, max_tokens=1)
    (output,) = llm.chat([{"role": "user", "content": content}], params, use_tqdm=False)
    assert output.prompt_token_ids is not None
    tokenizer = llm.engine.context.tokenizer
    image, mark = tokenizer.convert_tokens_to_ids([IMAGE, MARK])
    assert (output.prompt_token_ids.count(image), output.prompt_token_ids.count(mark)) == (8, 2)
    behind = output.prompt_token_ids[len(output.prompt_token_ids) - output.prompt_token_ids[::-1].index(mark) :]
    said = tokenizer.decode(behind).replace(" ", "")
    assert tokenizer.decode(behind[:2]).lstrip(" ").startswith("a")
    assert said.startswith(f"a{IMAGE}b{MARK}cd<end_of_utterance>")


def test_split_by_the_operator(splitting: LLM, checkpoint: Path) -> None:
    """Images of one size, whole and split in one batch, give transformers' tokens."""
    model = Idefics2ForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
    processor = make_processor(checkpoint)
    texts, images = (f"{IMAGE}What?", f"one {IMAGE}{IMAGE} two"), [make_image(64, 48, seed) for seed in range(3)]
    cases = [(texts[i], images[i : 2 * i + 1], split) for i in (0, 1) for split in (True, False)]
    expected = []
    for text, own, split in cases:
        processor.image_processor.do_image_splitting = split
        inputs = processor(text=text, images=own, return_tensors="pt")
        output = model.generate(**inputs, max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS, do_sample=False)
        tokens = output[0].tolist()
        expected.append((tokens[:-NUM_TOKENS], tokens[-NUM_TOKENS:]))
    prompts = [prompt(text, own, **({} if split else {"do_image_splitting": False})) for text, own, split in cases]
    assert tokens_of(splitting, prompts) == expected
    assert [tokens_of(splitting, [each])[0] for each in prompts] == expected


def test_splitting_by_a_request_alone_is_refused(llm: LLM) -> None:
    """With both numbers: memory was planned for whole images."""
    with pytest.raises(ProcessorKwargsError, match="40 embeddings, more than the 8"):
        tokens_of(llm, [prompt(IMAGE, [make_image(64, 48)], do_image_splitting=True)])


def test_an_image_of_one_row_cannot_be_split(splitting: LLM) -> None:
    """It is refused, and taken whole."""
    thin = make_image(30, 1)
    with pytest.raises(MediaError, match="30 x 1 pixels cannot be split"):
        tokens_of(splitting, [prompt(IMAGE, [thin])])
    assert tokens_of(splitting, [prompt(IMAGE, [thin], do_image_splitting=False)])


def test_the_plan_is_for_crops_of_the_largest_size(llm: LLM, splitting: LLM) -> None:
    """The dummy's quarters are as large as it all, unless the operator plans for less."""
    for engine, crops in ((llm, 1), (splitting, 5)):
        (feature,) = engine.engine.input_processor.mm_processor.profile.features
        assert feature.data["pixel_values"].data.shape == (1, crops, 3, 96, 96)
        assert feature.data["pixel_attention_mask"].data.all()


def test_sizes_beyond_the_plan_and_below_a_patch(llm: LLM) -> None:
    """Where a request keeps an image's own size, it is refused with the numbers."""
    with pytest.raises(MediaTooLargeError, match=r"100 x 96 pixels .* above 96 x 96"):
        tokens_of(llm, [prompt(IMAGE, [make_image(100, 96)], do_resize=False)])
    with pytest.raises(MediaError, match=r"at least 8 x 8 pixels, .* has 7 x 60"):
        tokens_of(llm, [prompt(IMAGE, [make_image(7, 60)], do_resize=False)])
    with pytest.raises(ProcessorKwargsError, match=r"size .* is above"):
        tokens_of(llm, [prompt(IMAGE, [make_image(7, 60)], size={"shortest_edge": 28, "longest_edge": 128})])
    assert tokens_of(llm, [prompt(IMAGE, [make_image(8, 60)], do_resize=False)])


def test_an_image_without_padding_may_be_all_zeros(llm: LLM) -> None:
    """Transformers' model takes it for padding, and fails; here it is an image, other than a white one."""
    black, white = (Image.new("RGB", (40, 40), colour) for colour in ("black", "white"))
    settings = {"do_normalize": False, "do_pad": False}
    first, second = tokens_of(llm, [prompt(f"{IMAGE}?", [image], **settings) for image in (black, white)])
    assert first[0] == second[0]
    assert first[1] != second[1]
