"""Drafts beside LoRA adapters: each row of a step has its sequence's adapter, in captured steps of many rows, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from corellm import LLM, SamplingParams
from corellm.worker.decode_graphs import DecodeGraphs
from corellm.worker.input_batch import FlatBatch
from corellm_speculative import model_drafting
from corellm_testing.tiny_text import make_tiny_checkpoint
from corellm_testing.together import generate_together
from extensions.lora.tests.adapters import Adapted, asking
from extensions.speculative.tests.head_checkpoints import make_head

OPTIONS: dict[str, Any] = {
    "dtype": "float32", "max_model_len": 120, "num_kv_blocks": 60, "max_num_seqs": 3,
    "enable_lora": True, "max_loras": 2, "generation_config": "none",
}  # fmt: skip
TEXTS = ["one two three", "red green", "what is this", "again and again", "one two three"]
NAMES = ["first", None, "second", "first", "second"]


def test_outputs_with_adapters_are_those_without_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft model has no adapters: it is right without one, and now and then with one; a head reads theirs."""
    monkeypatch.setattr(model_drafting, "plan_depths", lambda acceptances, most, steps, drafts: most)
    rows: list[int] = []
    replay = DecodeGraphs.run

    def noted(graphs: DecodeGraphs, batch: FlatBatch, token_ids: Any = None) -> torch.Tensor:
        rows.append(len(batch.input_ids))
        return replay(graphs, batch, token_ids)

    path = make_tiny_checkpoint(tmp_path / "model", intermediate_size=96, num_key_value_heads=2)
    configs: dict[str, dict[str, Any]] = {
        name: {"r": 4, "target_modules": "all-linear"} for name in ("first", "second")
    }
    adapted = Adapted.made(tmp_path, path, transformers.LlamaForCausalLM, configs)
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=1)
    found = []
    head = {"method": "eagle", "model": str(make_head(tmp_path / "head", path, "eagle")), "num_speculative_tokens": 6}
    for config in (None, head, {"model": str(path), "num_speculative_tokens": 6}):
        with LLM(str(path), speculative_config=config, **OPTIONS) as llm:
            if config is not None:
                monkeypatch.setattr(DecodeGraphs, "run", noted)
            outputs = generate_together(llm, asking(TEXTS, adapted.requests(NAMES)), [params] * len(TEXTS))
            found.append([(list(o.outputs[0].token_ids), o.outputs[0].logprobs) for o in outputs])
            counts, has_graphs = llm.engine.scheduler.get_stats(), llm.engine.runner.graphs is not None
    assert found[0] == found[1] == found[2] or torch.cuda.is_available()
    assert found[0][0] != found[0][4]
    assert counts.num_draft_tokens > sum(counts.accepted_per_position) > 18
    assert max(rows) > 10 or not has_graphs
