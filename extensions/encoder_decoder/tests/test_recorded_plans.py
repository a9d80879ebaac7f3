"""Decode steps of decoders that attend to states are recorded plans, which change no bit of the outputs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from corellm import LLM, SamplingParams
from corellm.loading import loading
from corellm.worker.decode_graphs import StaticInputs
from corellm_blip import tiny as blip
from corellm_florence2 import tiny as florence2
from corellm_mllama import tiny as mllama
from corellm_testing.together import generate_together
from tests.fixtures import random_image

MODELS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "an encoder-decoder": (florence2.make_tiny_checkpoint, ""),
    "layers of states alone": (mllama.make_tiny_checkpoint, "<|image|>"),
    "states in every layer": (blip.make_tiny_checkpoint, ""),
}
"""How a checkpoint is made, and the mark of an image."""


@pytest.mark.skipif(
    torch.cuda.is_available() or os.environ.get("CORELLM_CPU_KERNELS") == "off", reason="needs the compiled kernels"
)
@pytest.mark.parametrize("name", MODELS)
def test_recorded_plans_change_no_bit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests with states beside one without, in plans with rows of padding: outputs are as without.

    And those with states go on as they are when they decode alone.
    """
    make, image = MODELS[name]
    path = make(tmp_path)
    texts = ("What is it", "a", "", "How many objects are there one two three", "yes")
    prompts: list[Any] = [
        {"prompt": image + text, "multi_modal_data": {"image": random_image(40, 32, seed)}}
        for seed, text in enumerate(texts)
    ]
    prompts[3] = texts[3]
    params = [SamplingParams(temperature=0, max_tokens=n, min_tokens=n, logprobs=2) for n in (30, 9, 16, 22, 4)]
    sizes: list[tuple[int, int]] = []
    fill = StaticInputs.fill

    def noting(inputs: StaticInputs, batch: Any, size: int, *rest: Any) -> None:
        sizes.append((len(batch.input_ids), size))
        fill(inputs, batch, size, *rest)

    monkeypatch.setattr(StaticInputs, "fill", noting)
    monkeypatch.setattr(loading, "plan_sizes_for_cpu", lambda most: [1, 3, most])
    outcomes = []
    for eager in (True, False):
        options: dict[str, Any] = {"dtype": "float32", "max_model_len": 64, "block_size": 8, "enforce_eager": eager}
        with LLM(str(path), **options, num_kv_blocks=60) as llm:
            outputs = generate_together(llm, prompts, params)
            alone = llm.generate(prompts[0], params[0], use_tqdm=False)
            llm.engine.scheduler.blocks.check_integrity()
        outcomes.append([(one.outputs[0].token_ids, one.outputs[0].logprobs) for one in outputs])
        assert outcomes[-1][0] == (alone[0].outputs[0].token_ids, alone[0].outputs[0].logprobs)
        assert eager or {(1, 1), (2, 3)} < set(sizes)
        assert eager != bool(sizes)
    assert outcomes[0] == outcomes[1]
    assert len({tuple(token_ids) for token_ids, _ in outcomes[0]}) == len(prompts)
