"""Text-only models give the tokens of transformers' `generate`, whatever the engine does to save time or memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from corellm.loading.dummy_steps import capture_graphs
from corellm.worker.decode_graphs import DecodeGraphs
from corellm_testing.tiny_text import make_tiny_checkpoint
from tests.text_models.families import FAMILIES, READ_VALUES
from tests.text_models.parity import Model, generated
from tests.worker.replayed_graph import ReplayedGraph
from tests.worker.tensor_attention import TensorAttention

ENGINES: dict[str, dict[str, Any]] = {
    "whole": {},
    "chunks": {"max_num_batched_tokens": 16, "enable_prefix_caching": False},
    "preempted": {
        "max_num_batched_tokens": 24,
        "block_size": 8,
        "num_kv_blocks": 16,
        "preemption_mode": "swap",
    },
}
"""16 blocks of 8 tokens hold the longest request, but not all together."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """`model(architecture)`: written and generated from once."""
    made: dict[str, Model] = {}

    def make(architecture: str) -> Model:
        if architecture not in made:
            path = make_tiny_checkpoint(
                tmp_path_factory.mktemp("tiny"), architecture=architecture, **FAMILIES[architecture]
            )
            made[architecture] = Model(path, generated(architecture, path))
        return made[architecture]

    return make


@pytest.mark.parametrize("architecture", FAMILIES)
def test_outputs_are_varied(model: Callable[[str], Model], architecture: str) -> None:
    """Equal or constant outputs would prove nothing of the tests below."""
    outputs = [one.token_ids for one in model(architecture).wanted]
    assert len({tuple(output[:5]) for output in outputs}) == len(outputs)
    assert sum(len(set(output)) > len(output) // 4 for output in outputs) >= 4


@pytest.mark.parametrize("architecture", ["GptOssForCausalLM", "GraniteSWAForCausalLM"])
def test_sinks_choose_tokens(model: Callable[[str], Model], architecture: str) -> None:
    """Without them transformers itself generates others: an engine that left them out would not pass below."""
    tiny = model(architecture)
    without = generated(architecture, tiny.path, with_sinks=False)
    assert sum(one.token_ids != other.token_ids for one, other in zip(tiny.wanted, without, strict=True)) >= 4


@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("architecture", [name for name in FAMILIES if name != "LlamaForCausalLM"])
def test_tokens_equal_transformers(model: Callable[[str], Model], architecture: str, options: dict[str, Any]) -> None:
    """Batched, in chunks, from the prefix cache, preempted: the same tokens. (With Llama the contract does this.)"""
    tiny = model(architecture)
    with tiny.engine(**options) as llm:
        outputs = tiny.require_equal(llm)
        if options.get("enable_prefix_caching", True):
            outputs += tiny.require_equal(llm)
            assert any(output.num_cached_tokens for output in outputs)
        preempted = sum(output.metrics.num_preemptions for output in outputs)
        assert (preempted > 0) == ("num_kv_blocks" in options)
        llm.engine.scheduler.blocks.check_integrity()


@pytest.mark.parametrize("architecture", sorted(FAMILIES.keys() - READ_VALUES))
def test_captured_decodes_equal_transformers(
    model: Callable[[str], Model], architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decode steps captured and replayed give the same tokens. (Not where a step reads values on the host.)"""
    tiny, replayed = model(architecture), []
    run = DecodeGraphs.run
    monkeypatch.setattr(DecodeGraphs, "run", lambda *args: (replayed.append(1), run(*args))[1])
    # torch's operations only: what is replayed here are those
    with tiny.engine(max_num_seqs=4, fuse_layers=False, attention_backend="reference") as llm:
        runner = llm.engine.runner
        runner.backend = TensorAttention()
        capture_graphs(runner, [1, 2, 4], max_blocks=8, position_rows=1, make_graph=ReplayedGraph)
        tiny.require_equal(llm)
    assert replayed


def test_layers_that_share_keys_and_values_attend_to_one_cache(model: Callable[[str], Model]) -> None:
    """Gemma 4's last layers have none of their own: they take half the memory."""
    with model("Gemma4ForCausalLM").engine() as llm:
        caches = llm.engine.runner.kv_cache.layers
        assert [id(caches[layer]) for layer in (2, 3)] == [id(caches[layer]) for layer in (0, 1)]
