"""The sampler chooses the same tokens with the kernels as without, and fails the same rows."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch

from corellm.sampling.sampler import FAILED, Sampler
from corellm.sampling_params import SamplingParams
from corellm_kernels.gpu.sampling import sample, sample_reference
from tests.kernels.comparing import DEVICE
from tests.sampling.test_sampler import VOCAB, logits_of, state


def random_params(rng: Random) -> SamplingParams:
    """Greedy and drawn, cut and not, edited and not."""
    edits: dict[str, Any] = rng.choice(
        [{}, {"logit_bias": {7: 4.0}}, {"repetition_penalty": 1.4}, {"allowed_token_ids": [3, 5, 6, 9]}]
    )
    return SamplingParams(
        temperature=rng.choice([0.0, 0.0, 0.7, 1.0, 1.9]),
        top_k=rng.choice([0, 0, 1, 5, VOCAB]),
        top_p=rng.choice([1.0, 1.0, 0.6, 0.95]),
        min_p=rng.choice([0.0, 0.0, 0.1]),
        seed=rng.randrange(1000),
        **edits,
    )


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize(("function", "rounds"), [(sample_reference, 40), (sample, 4)])
def test_tokens(function: Any, rounds: int, ahead: int) -> None:
    for seed in range(rounds):
        rng = Random(seed)
        states = [state(random_params(rng), outputs=[5, 9]) for _ in range(6)]
        logits = logits_of(6, seed=seed).to(DEVICE)
        before = logits.clone()
        ours = Sampler(function).start(logits, states, ahead=ahead).wait()
        theirs = Sampler().start(logits, states, ahead=ahead).wait()
        assert ours.token_ids == theirs.token_ids
        assert torch.equal(logits, before)


@pytest.mark.parametrize("function", [sample_reference, sample])
def test_rows_at_fault(function: Any) -> None:
    """NaN, infinity, and nothing that is allowed: each fails alone, with the same error."""
    params = SamplingParams(temperature=0.8, seed=1)
    logits = logits_of(4).to(DEVICE)
    logits[0, 3], logits[1, 4], logits[2] = torch.nan, torch.inf, -torch.inf
    states = [state(params) for _ in range(4)]
    ours, theirs = (Sampler(way)(logits, states) for way in (function, None))
    assert ours.token_ids == theirs.token_ids
    assert ours.token_ids[:3] == [FAILED] * 3
    assert {row: str(error) for row, error in ours.failed.items()} == {
        row: str(error) for row, error in theirs.failed.items()
    }
