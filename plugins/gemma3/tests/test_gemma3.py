"""Images whose tokens see each other: transformers' tokens, wherever chunks and cached prefixes would cut them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from corellm import LLM, SamplingParams
from corellm.errors import ProcessorKwargsError
from corellm_gemma3.tiny import make_tiny_checkpoint
from corellm_testing.items import make_image

IMAGE = "<start_of_image>"
PROMPTS = [
    f"over{IMAGE}\n\nno {IMAGE} \n yes",
    f"one two{IMAGE}{IMAGE}\n\n\nthree",
]
NUM_TOKENS = 4


class Reference:
    """Transformers' greedy tokens."""

    def __init__(self, path: Path) -> None:
        self.processor = transformers.AutoProcessor.from_pretrained(path)
        self.model = transformers.Gemma3ForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()

    def generate(self, text: str, images: Sequence[Any], **kwargs: Any) -> tuple[list[int], list[int]]:
        """Return the tokens of prompt and output."""
        inputs = self.processor(text=text, images=list(images) or None, return_tensors="pt", **kwargs)
        output = self.model.generate(**inputs, max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS, do_sample=False)[
            0
        ].tolist()
        return output[:-NUM_TOKENS], output[-NUM_TOKENS:]


@pytest.fixture(scope="module", params=[24, 6], ids=["window-24", "window-6"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Windows that hold an image of 16 tokens, and that do not."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("gemma3"), sliding_window=request.param)


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> list[tuple[list[int], list[int]]]:
    """Return the reference's tokens for each prompt."""
    reference = Reference(checkpoint)
    return [reference.generate(text, images(text)) for text in PROMPTS]


def images(text: str, seed: int = 0) -> list[Any]:
    """The images of a prompt."""
    return [make_image(60 + 7 * i, 50, seed + i) for i in range(text.count(IMAGE))]


def answers(llm: LLM, texts: Sequence[str], seed: int = 0) -> list[tuple[list[int], list[int]]]:
    """The tokens of prompts and outputs."""
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, min_tokens=NUM_TOKENS)
    prompts = [{"prompt": text, "multi_modal_data": {"image": images(text, seed)}} for text in texts]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [(output.prompt_token_ids, output.outputs[0].token_ids) for output in outputs]


@pytest.fixture(scope="module", params=[None, "cpu"], ids=["default", "cpu"])
def llm(request: pytest.FixtureRequest, checkpoint: Path) -> Iterator[LLM]:
    """The engine, without a prefix cache, on each attention backend."""
    with LLM(
        str(checkpoint),
        dtype="float32",
        enable_prefix_caching=False,
        device=request.param or "auto",
        attention_backend=request.param,
    ) as loaded:
        yield loaded


def test_every_chunk_border(
    llm: LLM, expected: list[tuple[list[int], list[int]]], request: pytest.FixtureRequest
) -> None:
    """Steps of any number of tokens: each border falls on each token of each image, and no image is cut.

    Each window and each attention backend meets every number, and each pair of them every second.
    """
    longest = max(len(prompt) for prompt, _ in expected)
    indices = request.node.callspec.indices
    for budget in range(1 + (indices["checkpoint"] + indices["llm"]) % 2, longest + 1, 2):
        llm.engine.scheduler.max_num_batched_tokens = budget
        for text, want in zip(PROMPTS, expected, strict=True):
            assert answers(llm, [text]) == [want], f"{budget} tokens per step"
        if budget % 8 in (0, 1):
            assert answers(llm, PROMPTS) == expected, f"{budget} tokens per step, together"


@pytest.mark.parametrize("block_size", [8, 16])
def test_a_cached_prefix_may_end_within_an_image(checkpoint: Path, block_size: int) -> None:
    """Its other tokens are computed as if all of them were."""
    reference = Reference(checkpoint)
    texts = [f"{'word ' * before}{IMAGE}{tail}" for before in (0, 1, 2) for tail in ("", "no", "yes or no", "no")]
    wanted = [reference.generate(text, images(text, 5)) for text in texts]
    with LLM(str(checkpoint), dtype="float32", block_size=block_size) as llm:
        starts = set()
        for text, want in zip(texts, wanted, strict=True):
            params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, min_tokens=NUM_TOKENS)
            (output,) = llm.generate(
                {"prompt": text, "multi_modal_data": {"image": images(text, 5)}}, params, use_tqdm=False
            )
            assert (output.prompt_token_ids, output.outputs[0].token_ids) == want
            first = want[0].index(llm.engine.context.tokenizer.image_token_id)
            starts.add(0 < (output.num_cached_tokens or 0) - first < 16)
    assert starts == {False, True}, "no cached prefix ends within an image"


CROPS = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 20, "pan_and_scan_max_num_crops": 3}
SIZES = [(90, 40), (50, 50), (30, 95)]
"""Of images with two crops, with none, and with three."""


def test_crops_are_those_of_transformers(checkpoint: Path) -> None:
    """Tokens of prompts and outputs, wherever the text about crops joins that around an image."""
    reference = Reference(checkpoint)
    crops = [make_image(*size, 1) for size in SIZES]
    texts = [
        f"over{IMAGE}\n\nno {IMAGE} \n yes\n{IMAGE}",
        f"{IMAGE}{IMAGE}one \n\n{IMAGE}here",
        f"<start_of_turn>user\n{IMAGE}\n{IMAGE}word {IMAGE}<end_of_turn>\n<start_of_turn>model\n",
    ]
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, min_tokens=NUM_TOKENS)
    outputs = set[tuple[int, ...]]()
    with LLM(str(checkpoint), dtype="float32", mm_processor_kwargs=CROPS) as llm:
        for shift, text in enumerate(texts):
            images = [*crops[shift:], *crops[:shift]]
            prompt = {"prompt": text, "multi_modal_data": {"image": images}}
            for kwargs in ({}, {"do_pan_and_scan": False}):
                (output,) = llm.generate({**prompt, "mm_processor_kwargs": kwargs}, params, use_tqdm=False)
                wanted = reference.generate(text, images, **{**CROPS, **kwargs})
                assert (output.prompt_token_ids, output.outputs[0].token_ids) == wanted
                outputs.add(tuple(wanted[1]))
    assert len(outputs) > len(texts), "crops change no output"


def test_what_users_write_stays_text_beside_crops(checkpoint: Path) -> None:
    """The words about crops join the text before an image: a mark of an image in it is no image."""
    image = make_image(*SIZES[0], 1)
    parts = [{"type": "text", "text": f"a {IMAGE} b"}, {"type": "image", "image": image}]
    with LLM(str(checkpoint), dtype="float32", mm_processor_kwargs=CROPS) as llm:
        (output,) = llm.chat([{"role": "user", "content": parts}], SamplingParams(max_tokens=1), use_tqdm=False)
        tokenizer = llm.engine.context.tokenizer
        tokens = output.prompt_token_ids
        assert tokens.count(tokenizer.boi_token_id) == 3, "an image and two crops"
        assert f"a {IMAGE} b" in tokenizer.decode(tokens[: tokens.index(tokenizer.boi_token_id)])


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "48 embeddings, more than the 16 for which memory was planned"),
    ({"pan_and_scan_max_num_crops": 5}, "pan_and_scan_max_num_crops 5 of a request is above 4"),
    ({"pan_and_scan_max_num_crops": "4"}, "does not fit this image"),
    ({"pan_and_scan_max_num_crops": 0}, "does not fit this image"),
    ({"pan_and_scan_min_crop_size": 0}, "does not fit this image"),
    ({"size": {"height": 2000, "width": 2000}}, "of a request is above"),
]
"""Arguments beside `CROPS`, and what is said of them."""


def test_crops_beyond_what_memory_was_planned_for_are_refused(checkpoint: Path) -> None:
    """With both numbers, before there are pixels where the arguments alone say it; wrong ones are the request's."""
    prompt = {"prompt": IMAGE, "multi_modal_data": {"image": make_image(*SIZES[0], 1)}}
    with LLM(str(checkpoint), dtype="float32") as llm:
        for kwargs, message in REFUSED:
            with pytest.raises(ProcessorKwargsError, match=message):
                llm.generate({**prompt, "mm_processor_kwargs": {**CROPS, **kwargs}}, use_tqdm=False)


def test_memory_is_planned_for_crops_of_very_long_images_alone(checkpoint: Path) -> None:
    """The largest image is one that is long enough to be cut."""
    arguments = {**CROPS, "pan_and_scan_min_ratio_to_activate": 5.0}
    with LLM(str(checkpoint), dtype="float32", mm_processor_kwargs=arguments) as llm:
        assert llm.engine.input_processor.mm_processor.profile.max_embeds == {"image": 64}
