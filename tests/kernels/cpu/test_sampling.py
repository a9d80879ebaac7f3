"""Sampling in C++: bfloat16, large vocabularies, edits; `tests/kernels/test_sampling.py` has what kernels share."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from corellm import LLM, SamplingParams
from corellm.sampling.constraint import pack
from corellm.sampling.logit_edits import LogitEdits, collect_edits
from corellm.sampling.sampler import FAILED, Sampler
from corellm_kernels.cpu.sampling import sample
from corellm_kernels.logit_edits import edited_by_torch
from tests.kernels.cpu.conftest import SetDtype
from tests.kernels.test_sampling import SAMPLERS, assert_chosen, run, state

TRUNCATIONS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=0.8, top_k=20),
    SamplingParams(temperature=1.3, top_p=0.95),
    SamplingParams(temperature=0.9, top_k=5000, top_p=0.8, min_p=0.001),
    SamplingParams(temperature=2.0, min_p=0.05),
]


def test_it_is_among_the_samplers_tested() -> None:
    assert sample in SAMPLERS


@pytest.mark.parametrize("vocab", [3, 8191, 151_936])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tokens_are_those_of_the_worker(dtype: torch.dtype, vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    params = TRUNCATIONS * 3
    logits = (torch.randn(len(params), vocab, generator=generator) * 3).to(dtype)
    uniforms = torch.rand(len(params), dtype=torch.float64, generator=generator)
    assert_chosen(run(sample, logits, params, uniforms), logits, params, uniforms)


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
def test_torchs_default_type_does_not_matter(default: torch.dtype, default_dtype: SetDtype) -> None:
    logits = torch.randn(64, 1000, generator=torch.Generator().manual_seed(0))
    wanted = sample(logits)
    default_dtype(default)
    for ours, theirs in zip(sample(logits), wanted, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


def test_edits_come_first_and_hide_nothing_broken() -> None:
    """The worker's own sampler chooses the same; a row with NaN at a forbidden place fails."""
    vocab = 1000
    logits = torch.randn(5, vocab, generator=torch.Generator().manual_seed(1))
    edited = [
        SamplingParams(temperature=0.0, allowed_token_ids=[7, 8, 700]),
        SamplingParams(temperature=0.0, logit_bias={9: 50.0}),
        SamplingParams(temperature=0.0, repetition_penalty=10.0),
        SamplingParams(temperature=0.0, allowed_token_ids=[7, 8, 700]),
        SamplingParams(temperature=0.5, top_k=2, logit_bias={3: 60.0}, seed=1),
    ]
    logits[3, 500] = torch.nan
    before = logits.clone()
    states = [state(params, vocab, outputs=[int(logits[2].argmax())]) for params in edited]
    temperature = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.5])
    uniforms = torch.full((5,), states[4].uniform(0), dtype=torch.float64)
    tokens, largest = sample(
        logits, temperature, uniforms=uniforms, top_k=torch.tensor([0, 0, 0, 0, 2]),
        edits=collect_edits(states, logits.device),
    )  # fmt: skip
    assert torch.equal(logits.nan_to_num(9), before.nan_to_num(9))
    assert largest.tolist() == [*before[:3].amax(dim=-1).tolist(), torch.inf, before[4].max()]
    theirs = Sampler()(logits, states)
    assert tokens.tolist() == theirs.token_ids
    assert tokens[3:].tolist() == [FAILED, 3]
    assert set(tokens[:3].tolist()).isdisjoint(before[:3].argmax(dim=-1).tolist())


@pytest.mark.parametrize("vocab", [3, 64, 8191, 151_936])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_masks_alone_are_read_by_the_kernel(dtype: torch.dtype, vocab: int) -> None:
    """As of rows that torch edited: without a mask, with few tokens, nearly all and none, NaN at a forbidden one."""
    generator = torch.Generator().manual_seed(vocab)
    params = TRUNCATIONS * 2
    logits = (torch.randn(len(params), vocab, generator=generator) * 3).to(dtype)
    allowed = torch.rand(len(params), vocab, generator=generator) < torch.linspace(0, 1, len(params))[:, None]
    allowed[:2] = False
    logits[1, vocab // 2] = logits[7, vocab - 1] = torch.nan
    packed = np.stack([pack(row.nonzero()[:, 0].numpy(), vocab) for row in allowed])
    rows = torch.tensor([0, 1, 3, 5, 6, 7, 10, 11])
    edits = LogitEdits(torch.from_numpy(packed)[rows], rows, None, None, None)
    uniforms = torch.rand(len(params), dtype=torch.float64, generator=generator)
    tokens = run(partial(sample, edits=edits), logits, params, uniforms)
    assert tokens.tolist() == run(sample, edited_by_torch(logits, edits), params, uniforms).tolist()
    assert tokens[:2].tolist() == [FAILED, FAILED]
    assert all(allowed[row, tokens[row]] for row in rows.tolist() if tokens[row] != FAILED)


def test_an_engine_samples_with_it(tiny_llava: str) -> None:
    """The same seed gives the same tokens with and without it."""
    params = SamplingParams(temperature=0.9, top_p=0.9, top_k=50, seed=5, max_tokens=24, ignore_eos=True)
    with LLM(tiny_llava, dtype="float32") as llm:
        runner = llm.engine._runner
        assert runner is not None
        assert runner.sampler._sample is sample
        ours = llm.generate("USER: Tell me. ASSISTANT:", params, use_tqdm=False)[0].outputs[0].token_ids
        runner.sampler = Sampler()
        assert llm.generate("USER: Tell me. ASSISTANT:", params, use_tqdm=False)[0].outputs[0].token_ids == ours
