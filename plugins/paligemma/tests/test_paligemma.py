"""Prompts whose tokens all see each other: transformers' tokens, whatever the chunks, caches and decoders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from corellm import LLM, SamplingParams
from corellm.errors import ProcessorKwargsError
from corellm_paligemma import PaliGemma
from corellm_paligemma.tiny import make_tiny_checkpoint
from corellm_testing.items import make_image

IMAGE = "<image>"
PROMPTS = [
    f"{IMAGE}caption en",
    f"{IMAGE}over no\n\n",
    f"one{IMAGE} two <loc0003>\n",
    IMAGE,
    f"{IMAGE}{IMAGE}{IMAGE}same?",
]
NUM_TOKENS = 6
DECODERS: dict[str, dict[str, Any]] = {
    "gemma": {},
    "gemma2": {"decoder": "gemma2", "sliding_window": 9},
    "gemma2-without-caps": {"decoder": "gemma2", "sliding_window": 64, "softcap": None, "add_bos": False},
}
Tokens = tuple[list[int], list[int]]


class Reference:
    """Transformers' greedy tokens; its default attention ignores caps."""

    def __init__(self, path: Path) -> None:
        self.processor = transformers.AutoProcessor.from_pretrained(path)
        self.model = transformers.PaliGemmaForConditionalGeneration.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    def generate(self, text: str, images: Sequence[Any]) -> Tokens:
        """Return the tokens of prompt and output."""
        inputs = self.processor(text=text, images=[list(images)], return_tensors="pt")
        inputs.pop("labels", None)
        output = self.model.generate(**inputs, max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS, do_sample=False)
        tokens = output[0].tolist()
        return tokens[:-NUM_TOKENS], tokens[-NUM_TOKENS:]


@pytest.fixture(scope="module", params=DECODERS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PaliGemma, PaliGemma 2."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("paligemma"), **DECODERS[request.param])


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Reference:
    """Transformers' model."""
    return Reference(checkpoint)


@pytest.fixture(scope="module")
def expected(reference: Reference) -> list[Tokens]:
    """Return the reference's tokens for each prompt."""
    return [reference.generate(text, images(text)) for text in PROMPTS]


def images(text: str, seed: int = 0) -> list[Any]:
    """The images of a prompt."""
    return [make_image(60 + 7 * i, 50, seed + i) for i in range(text.count(IMAGE))]


def prompt_of(text: str, seed: int = 0) -> dict[str, Any]:
    """A prompt with its images."""
    return {"prompt": text, "multi_modal_data": {"image": images(text, seed)}}


def outputs_of(llm: LLM, prompts: Sequence[Any]) -> list[Any]:
    """What the engine returns, greedily."""
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, min_tokens=NUM_TOKENS)
    return llm.generate(prompts, params, use_tqdm=False)


def tokens_of(outputs: Sequence[Any]) -> list[Tokens]:
    """The tokens of prompts and outputs."""
    return [(output.prompt_token_ids, output.outputs[0].token_ids) for output in outputs]


@pytest.fixture(scope="module", params=[None, "cpu", "reference"], ids=["default", "cpu", "reference"])
def llm(request: pytest.FixtureRequest, checkpoint: Path) -> Iterator[LLM]:
    """The engine, without a prefix cache, on each attention backend."""
    with LLM(str(checkpoint), dtype="float32", enable_prefix_caching=False, attention_backend=request.param) as loaded:
        yield loaded


def test_every_chunk_border(llm: LLM, expected: list[Tokens], request: pytest.FixtureRequest) -> None:
    """Steps of any number of tokens: no border cuts a prompt, alone or among others.

    Each decoder and each attention backend meets every number, and each pair of them every third.
    """
    longest = max(len(prompt) for prompt, _ in expected)
    indices = request.node.callspec.indices
    for budget in range(1 + (indices["checkpoint"] + indices["llm"]) % 3, longest + 2, 3):
        llm.engine.scheduler.max_num_batched_tokens = budget
        assert tokens_of(outputs_of(llm, [prompt_of(PROMPTS[2])])) == [expected[2]], f"{budget} tokens per step"
        if budget % 8 in (1, 2, 3):
            assert tokens_of(outputs_of(llm, list(map(prompt_of, PROMPTS)))) == expected, f"{budget} tokens, together"


@pytest.mark.parametrize("budget", [16, 64, 8192])
def test_equal_prompts_share_blocks_and_longer_ones_do_not(checkpoint: Path, reference: Reference, budget: int) -> None:
    """Where prompts go on differently, their first tokens see other ones, too: nothing of the cache is right."""
    texts = [PROMPTS[1], PROMPTS[1] + "x", PROMPTS[1], PROMPTS[1] + "y and more"]
    wanted = [reference.generate(text, images(text)) for text in texts]
    with LLM(str(checkpoint), dtype="float32", block_size=8, max_num_batched_tokens=budget) as llm:
        outputs = [outputs_of(llm, [prompt_of(text)])[0] for text in texts]
        assert tokens_of(outputs) == wanted
        assert [bool(output.num_cached_tokens) for output in outputs] == [False, False, True, False]
        assert tokens_of(outputs_of(llm, list(map(prompt_of, texts)))) == wanted


def test_tokens_left_to_compute_see_the_whole_prompt(checkpoint: Path, reference: Reference) -> None:
    """Behind blocks of an equal prompt: one token or several, in layers with a window, too."""
    with LLM(str(checkpoint), dtype="float32", block_size=8) as llm:
        left = set()
        for i in range(8):
            text = f"{IMAGE}where is it?" + "x" * i
            wanted = [reference.generate(text, images(text))]
            first, again = (outputs_of(llm, [prompt_of(text)]) for _ in range(2))
            assert tokens_of(first) == tokens_of(again) == wanted
            left.add(len(wanted[0][0]) - again[0].num_cached_tokens)
        assert left == {1, 2, 3, 4, 5, 6, 7, 8}


def test_positions_count_from_one(reference: Reference) -> None:
    """As by transformers, in the prompt and behind it; rotations are relative, so no output tells."""
    seen: list[torch.Tensor] = []
    decoder = reference.model.model.language_model
    hook = decoder.register_forward_pre_hook(lambda *args: seen.append(args[2]["position_ids"][0]), with_kwargs=True)
    prompt, _ = reference.generate(PROMPTS[0], images(PROMPTS[0]))
    hook.remove()
    nothing: Any = None
    positions, offset = PaliGemma(nothing).get_rope_positions(prompt)
    assert torch.equal(positions, seen[0])
    assert [step.tolist() for step in seen[1:3]] == [[len(prompt) + i + offset] for i in (0, 1)]


def test_text_alone(llm: LLM, reference: Reference) -> None:
    """The processor takes none: the model alone, its prompt in the form of a text behind images."""
    inputs = reference.processor.tokenizer("<bos>how many\n", return_tensors="pt")
    both_ways = torch.zeros_like(inputs["input_ids"])
    output = reference.model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        token_type_ids=both_ways,
        max_new_tokens=NUM_TOKENS,
        min_new_tokens=NUM_TOKENS,
        do_sample=False,
    )[0].tolist()
    want = (output[:-NUM_TOKENS], output[-NUM_TOKENS:])
    complete = {"prompt_token_ids": output[:-NUM_TOKENS]}
    assert tokens_of(outputs_of(llm, ["how many", "<bos>how many", complete])) == [want] * 3


def test_another_size_is_refused_with_the_reason(llm: LLM) -> None:
    """At once."""
    wrong = prompt_of(PROMPTS[0]) | {"mm_processor_kwargs": {"size": {"height": 28, "width": 28}}}
    with pytest.raises(ProcessorKwargsError, match=r"56 x 56, .* 28 x 28; .*size"):
        llm.generate(wrong, use_tqdm=False)


@pytest.mark.parametrize("name", ["suffix", "nonsense"])
def test_arguments_for_training_are_refused(llm: LLM, name: str) -> None:
    """A suffix is what a model is trained to write."""
    with pytest.raises(ProcessorKwargsError, match=name):
        llm.generate(prompt_of(PROMPTS[0]) | {"mm_processor_kwargs": {name: "yes"}}, use_tqdm=False)
