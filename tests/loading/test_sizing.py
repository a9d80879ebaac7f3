"""How much of everything an engine gets: what was asked for, else what suits the device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from PIL import Image

from corellm import LLM, SamplingParams
from corellm.config import EngineConfig
from corellm.errors import ConfigError
from corellm.hookspecs import ModelContext
from corellm.loading import loading
from corellm.loading.sizing import plan_sizes, sequences_at_once, token_budget, wanted_len
from corellm.system.memory import DeviceMemory
from corellm.worker.kv_cache import CacheBytes

MEMORY = DeviceMemory(torch.device("cpu"), 0.9)


def context(device: str) -> ModelContext:
    """The context of a model with 4096 positions."""
    positions = SimpleNamespace(max_position_embeddings=4096)
    hf_config: Any = SimpleNamespace(get_text_config=lambda: positions)
    return ModelContext(Path("."), hf_config, None, torch.float32, torch.device(device))


def config(**options: Any) -> EngineConfig:
    return EngineConfig.from_kwargs(model="m", **options)


@pytest.mark.parametrize(("device", "sequences", "tokens"), [("cpu", 64, 2048), ("cuda", 256, 8192)])
def test_a_step_holds_what_suits_the_device(device: str, sequences: int, tokens: int) -> None:
    """Without any configuration."""
    on = context(device)
    assert (sequences_at_once(config(), on), token_budget(config(), on, 4096)) == (sequences, tokens)
    asked = config(max_num_seqs=3, max_num_batched_tokens=100)
    assert (sequences_at_once(asked, on), token_budget(asked, on, 4096)) == (3, 100)


def test_without_chunks_a_step_holds_the_longest_prompt() -> None:
    whole = config(enable_chunked_prefill=False)
    assert token_budget(whole, context("cpu"), 4096) == 4096
    assert token_budget(whole, context("cuda"), 4096) == 8192
    small = replace(whole, scheduler=replace(whole.scheduler, max_num_batched_tokens=4095))
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens=4095 .* max_model_len=4096"):
        token_budget(small, context("cpu"), 4096)


def test_blocks_for_as_many_sequences_as_may_run() -> None:
    """And as many on the host, to swap to."""
    sizes = plan_sizes(config(max_num_seqs=2, max_model_len=64, block_size=16), context("cpu"), CacheBytes(10), MEMORY)
    assert (sizes.num_blocks, sizes.num_host_blocks, sizes.max_model_len, sizes.max_num_seqs) == (9, 0, 64, 2)
    swapping = config(max_num_seqs=2, max_model_len=64, block_size=16, preemption_mode="swap")
    assert plan_sizes(swapping, context("cpu"), CacheBytes(10), MEMORY).num_host_blocks == 18


@pytest.mark.parametrize(("given", "kept", "per_step"), [({}, 128, 20), ({"encoder_cache_size": 40}, 40, 40)])
def test_encoder_outputs_are_kept_for_as_many_tokens_as_the_cache_holds(
    given: dict[str, int], kept: int, per_step: int
) -> None:
    """On a CPU, unless the operator says how many; a step encodes what its budget allows, or the largest item."""
    asked = config(max_num_seqs=2, max_model_len=64, block_size=16, max_num_batched_tokens=8, **given)
    cache = loading.make_scheduler(asked, plan_sizes(asked, context("cpu"), CacheBytes(10), MEMORY), 20).encoder_cache
    assert (cache.capacity_embeds, cache.step_embeds) == (kept, per_step)


def test_questions_about_images_seen_before_run_no_encoder(tiny_llava: Path) -> None:
    """Images of 16 tokens each, together twice as many as a step takes, are encoded once for two questions each."""
    images = [Image.new("RGB", (56, 56), (50 * i, 0, 0)) for i in range(4)]
    with LLM(tiny_llava, num_kv_blocks=40, max_num_batched_tokens=32) as llm:
        for question in ("What", "Where"):
            prompts = [{"prompt": f"USER: <image>\n{question}?", "multi_modal_data": {"image": x}} for x in images]
            llm.generate(prompts, SamplingParams(max_tokens=1), use_tqdm=False)
        assert llm.engine.scheduler.encoder_cache.misses == 4
        assert llm.engine.scheduler.encoder_cache.queries == 8


def test_on_a_gpu_encoder_outputs_are_kept_for_a_step() -> None:
    """The memory for more was not planned."""
    asked = config(max_num_batched_tokens=8, num_kv_blocks=4)
    sizes = plan_sizes(asked, context("cuda"), CacheBytes(10), MEMORY)
    assert loading.make_scheduler(asked, sizes, 2).encoder_cache.capacity_embeds == 8


def test_the_longest_sequence_is_what_the_cache_holds() -> None:
    few = {"num_kv_blocks": 4, "block_size": 16}
    assert plan_sizes(config(**few), context("cpu"), CacheBytes(10), MEMORY).max_model_len == 64
    with pytest.raises(ConfigError, match=r"max_model_len=65 .*64 tokens"):
        plan_sizes(config(**few, max_model_len=65), context("cpu"), CacheBytes(10), MEMORY)
    with pytest.raises(ConfigError, match=r"max_model_len=4097 .*4096 positions"):
        wanted_len(config(max_model_len=4097), context("cpu"))


def test_dummies_are_made_once_if_they_fit(tiny_llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that lowers the longest sequence makes no second processor; the adapter sees the lowered length."""
    made = Mock(side_effect=loading.make_mm_processor)
    monkeypatch.setattr(loading, "make_mm_processor", made)
    with LLM(tiny_llava, num_kv_blocks=4, block_size=16) as llm:
        assert llm.engine.context.max_model_len == llm.engine.max_model_len == 64
        assert llm.engine.input_processor.mm_processor.profile.max_tokens == {"image": 16}
    assert made.call_count == 1


def test_layers_with_a_window_have_fewer_blocks_where_windows_need_fewer() -> None:
    """Memory is divided by what the blocks of both kinds of layers take."""
    few = CacheBytes(block=10, place=90, most_places=5)
    asked = config(max_num_seqs=2, max_model_len=64, block_size=16)
    assert plan_sizes(asked, context("cpu"), few, MEMORY).num_places == 5
    many = CacheBytes(block=10, place=90, most_places=9)
    assert plan_sizes(asked, context("cpu"), many, MEMORY).num_places is None
    assert (few.of(4), few.of(5), few.of(9)) == (400, 500, 540)
    assert (few.blocks_within(400), few.blocks_within(499), few.blocks_within(545)) == (4, 4, 9)
