"""Images before texts: transformers' tokens and positions, whatever the chunks and the attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from corellm import LLM, SamplingParams
from corellm.multimodal import PlaceholderRange
from corellm_git import Git
from corellm_git.contract import GitReference
from corellm_git.tiny import make_tiny_checkpoint
from corellm_testing.items import make_image

TEXTS = ["", "What shape is in the picture?", "one two three", "one two four"]
NUM_TOKENS = 6
IMAGE_TOKENS = 17
"""Of the tiny checkpoint's images: 4 x 4 patches, and one for the whole."""
Tokens = tuple[list[int], list[int]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint."""
    return make_tiny_checkpoint(tmp_path_factory.mktemp("git"))


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> GitReference:
    """Transformers' model."""
    return GitReference(checkpoint)


def media_of(seed: int) -> dict[str, list[Any]]:
    """An image, another one for each seed."""
    return {"image": [make_image(60 + 7 * seed, 50, seed)]}


def prompt_of(text: str, seed: int = 0) -> dict[str, Any]:
    """A prompt with an image."""
    return {"prompt": text, "multi_modal_data": media_of(seed)}


def expected_of(reference: GitReference, text: str, seed: int = 0) -> Tokens:
    """The reference's tokens of a prompt with an image, and of the output."""
    made = reference.generate(text, media_of(seed), {}, NUM_TOKENS)
    return made.prompt_token_ids, made.token_ids


def tokens_of(llm: LLM, prompts: Sequence[Any]) -> list[Tokens]:
    """The engine's, greedily."""
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, min_tokens=NUM_TOKENS)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [(output.prompt_token_ids, list(output.outputs[0].token_ids)) for output in outputs]


@pytest.fixture(scope="module", params=["cpu", "reference"])
def llm(request: pytest.FixtureRequest, checkpoint: Path) -> Iterator[LLM]:
    """The engine, without a prefix cache, on both attention backends."""
    with LLM(str(checkpoint), dtype="float32", enable_prefix_caching=False, attention_backend=request.param) as loaded:
        yield loaded


def test_every_chunk_border(llm: LLM, reference: GitReference) -> None:
    """Steps of any number of tokens: no border cuts the image, alone or among others."""
    expected = [expected_of(reference, text, i) for i, text in enumerate(TEXTS)]
    assert len({tuple(output) for _, output in expected}) == len(TEXTS)
    prompts = [prompt_of(text, i) for i, text in enumerate(TEXTS)]
    for budget in range(1, len(expected[1][0]) + 2):
        llm.engine.scheduler.max_num_batched_tokens = budget
        assert tokens_of(llm, prompts[1:2]) == expected[1:2], f"{budget} tokens per step"
        if budget % 8 == 1:
            assert tokens_of(llm, prompts) == expected, f"{budget} tokens, together"


def test_text_behind_a_cached_image(checkpoint: Path, reference: GitReference) -> None:
    """The image's blocks are shared with other texts, whose positions are the same as without."""
    expected = [expected_of(reference, text) for text in TEXTS]
    with LLM(str(checkpoint), dtype="float32", block_size=8) as llm:
        for text, want in zip(TEXTS, expected, strict=True):
            assert tokens_of(llm, [prompt_of(text)]) == [want]
        params = SamplingParams(temperature=0, max_tokens=1)
        (again,) = llm.generate(prompt_of("anything else?"), params, use_tqdm=False)
        assert again.num_cached_tokens == 16


def test_positions_are_transformers(reference: GitReference) -> None:
    """Of the text, in the prompt; generated tokens go on from there."""
    seen: list[torch.Tensor] = []
    hook = reference.model.git.embeddings.register_forward_pre_hook(
        lambda *args: seen.append(args[2]["position_ids"][0]), with_kwargs=True
    )
    prompt, _ = expected_of(reference, TEXTS[1])
    hook.remove()
    context: Any = None
    image: Any = SimpleNamespace(placeholder=PlaceholderRange(0, IMAGE_TOKENS))
    positions, offset = Git(context).get_rope_positions(prompt, [image])
    assert positions[:IMAGE_TOKENS].tolist() == [-1] * IMAGE_TOKENS
    assert torch.equal(positions[IMAGE_TOKENS:], seen[0])
    assert [int(step[-1]) for step in seen[1:3]] == [len(prompt) + i + offset for i in (0, 1)]


def test_the_end_of_text_is_no_part_of_a_prompt(llm: LLM, reference: GitReference) -> None:
    """With the tokenizer's `[SEP]` and without, a prompt is the same."""
    want = expected_of(reference, TEXTS[1])
    ids = reference.processor.tokenizer(TEXTS[1])["input_ids"]
    assert ids[-1] == reference.processor.tokenizer.sep_token_id
    prompts = [{"prompt_token_ids": tokens, "multi_modal_data": media_of(0)} for tokens in (ids, ids[:-1])]
    assert tokens_of(llm, prompts) == [want] * 2
