"""Embeddings of every family, converted: equal to a plain transformers forward pass and pooling in float32."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from corellm import LLM
from corellm_testing import Reference
from tests.fixtures import random_image

CLOSE = {"rtol": 0, "atol": 1e-5}
TEXTS = ("A red circle is above a blue square", "One two three four five", "What?", "A red circle is above")


@dataclass(frozen=True)
class Family:
    """A family, and its oracle."""

    module: str
    contract: str
    modality: str = "image"
    options: tuple[tuple[str, str], ...] = ()


FAMILIES = {
    "llava": Family("corellm_llava", "TestLlava"),
    "fuyu": Family("corellm_fuyu", "TestFuyu"),
    "blip2": Family("corellm_blip2", "TestBlip2"),
    "qwen2_vl": Family(
        "corellm_qwen_vl", "TestQwen2VL", options=(("architecture", "Qwen2VLForConditionalGeneration"),)
    ),
    "qwen3_vl": Family(
        "corellm_qwen_vl", "TestQwen3VL", options=(("architecture", "Qwen3VLForConditionalGeneration"),)
    ),
    "qwen2_audio": Family("corellm_qwen_audio", "TestQwen2Audio", "audio"),
}
Loaded = tuple[LLM, Reference, str]
"""A model, its oracle, and a prompt with an item."""


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Loaded]]:
    """`load(family)`: a tiny model of it for embeddings, its oracle, and a prompt with an item."""
    loaded: dict[str, Loaded] = {}
    stack = ExitStack()

    def get(name: str) -> Loaded:
        if name not in loaded:
            family = FAMILIES[name]
            path: Path = tmp_path_factory.mktemp(name)
            importlib.import_module(f"{family.module}.tiny").make_tiny_checkpoint(path, **dict(family.options))
            contract = getattr(importlib.import_module(f"{family.module}.contract"), family.contract)
            llm = stack.enter_context(LLM(path, convert="embed", dtype="float32", max_model_len=256, num_kv_blocks=128))
            hooks = llm.engine.input_processor.mm_processor.hooks
            prompt = hooks.get_dummy_text(mm_counts={family.modality: 1}) + "What is this?"
            loaded[name] = (llm, contract.reference(path), prompt)
        return loaded[name]

    with stack:
        yield get


def item(modality: str, seed: int) -> Any:
    """A small image, or a second of noise."""
    if modality == "image":
        return random_image(60 + seed, 50, seed)
    return np.random.default_rng(seed).uniform(-0.5, 0.5, 16_000).astype(np.float32)


def with_item(prompt: str, modality: str, medium: Any) -> dict[str, Any]:
    given = (medium, 16_000) if modality == "audio" else medium
    return {"prompt": prompt, "multi_modal_data": {modality: given}}


def vectors(llm: LLM, prompts: Any, **options: Any) -> torch.Tensor:
    outputs = llm.embed(prompts, use_tqdm=False, **options)
    return torch.tensor([output.outputs.embedding for output in outputs if output.outputs is not None])


def oracle(llm: LLM, reference: Reference, text: str, media: dict[str, list[Any]]) -> tuple[list[int], torch.Tensor]:
    """Token ids, and hidden states of transformers' own model `[tokens, hidden_size]`: its decoder's output."""
    seen: list[torch.Tensor] = []
    decoder = llm.engine.runner.hooks.get_language_model(model=reference.model)
    handle = decoder.register_forward_hook(lambda module, args, output: seen.append(output[0]))
    found = reference.generate(text, media, {}, 1)
    handle.remove()
    return found.prompt_token_ids, seen[0][0]


def normalized(vector: torch.Tensor) -> torch.Tensor:
    return vector / vector.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize("name", FAMILIES)
def test_equals_transformers(load: Callable[[str], Loaded], name: str) -> None:
    """Text, with an item and without: the last token's hidden state of a plain forward pass, normalised; and all."""
    llm, reference, prompt = load(name)
    modality = FAMILIES[name].modality
    medium = item(modality, 1)
    assert not any("lm_head" in key for key in llm.engine.runner.model.state_dict())
    for given, text, media in (
        (TEXTS[0], TEXTS[0], {}),
        (with_item(prompt, modality, medium), prompt, {modality: [medium]}),
    ):
        token_ids, hidden = oracle(llm, reference, text, media)
        (output,) = llm.embed(given, use_tqdm=False)
        assert output.outputs is not None
        embedding = torch.tensor(output.outputs.embedding)
        assert output.prompt_token_ids == token_ids
        assert embedding.norm().item() == pytest.approx(1, abs=1e-6)
        torch.testing.assert_close(embedding, normalized(hidden[-1]), **CLOSE)
        (tokens,) = llm.encode(given, pooling_task="token_embed", use_tqdm=False)
        assert tokens.outputs is not None
        torch.testing.assert_close(torch.from_numpy(tokens.outputs.data), normalized(hidden), **CLOSE)


@pytest.mark.parametrize("name", FAMILIES)
def test_items_count(load: Callable[[str], Loaded], name: str) -> None:
    """An item changes the embedding, another item changes it again, the same item from the cache does not."""
    llm, _, prompt = load(name)
    modality = FAMILIES[name].modality
    one, same, other = (vectors(llm, with_item(prompt, modality, item(modality, seed)))[0] for seed in (1, 1, 2))
    torch.testing.assert_close(one, same, **CLOSE)
    assert (one - other).abs().max() > 1e-3
    assert (one - vectors(llm, "What is this?")[0]).abs().max() > 1e-3


@pytest.mark.parametrize("name", FAMILIES)
def test_batches_and_chunks(load: Callable[[str], Loaded], name: str) -> None:
    """Prompts side by side, in a step's few tokens, with prefixes cached or not, give what each gives alone."""
    llm, _, prompt = load(name)
    modality = FAMILIES[name].modality
    prompts: list[Any] = [*TEXTS, with_item(prompt, modality, item(modality, 3))]
    scheduler = llm.engine.scheduler
    alone = []
    for one in prompts:
        assert llm.engine.reset_prefix_cache()
        alone.append(vectors(llm, one)[0])
    scheduler.max_num_batched_tokens, usual = 5, scheduler.max_num_batched_tokens
    try:
        for cached in (False, True):
            assert cached or llm.engine.reset_prefix_cache()
            torch.testing.assert_close(vectors(llm, prompts), torch.stack(alone), **CLOSE)
        cut = llm.encode(prompts, pooling_task="token_embed", use_tqdm=False)
    finally:
        scheduler.max_num_batched_tokens = usual
    whole = llm.encode(prompts, pooling_task="token_embed", use_tqdm=False)
    for one, other in zip(cut, whole, strict=True):
        assert one.outputs is not None
        assert other.outputs is not None
        assert len(one.outputs.data) == len(one.prompt_token_ids)
        np.testing.assert_allclose(one.outputs.data, other.outputs.data, **CLOSE)
    assert scheduler.blocks.usage == 0
    scheduler.blocks.check_integrity()


@pytest.mark.parametrize("name", FAMILIES)
def test_dimensions(load: Callable[[str], Loaded], name: str) -> None:
    """`dimensions=k` is the first k entries of the raw vector, normalised."""
    llm, _, _ = load(name)
    raw = vectors(llm, list(TEXTS), normalize=False)
    torch.testing.assert_close(vectors(llm, list(TEXTS)), normalized(raw), **CLOSE)
    torch.testing.assert_close(vectors(llm, list(TEXTS), dimensions=7), normalized(raw[:, :7]), **CLOSE)
