"""What an output may begin with, place by place, beside a request's own parameters."""

from __future__ import annotations

import torch

from corellm.sampling.logit_edits import edit_logits
from corellm.sampling.sampling_state import SamplingState
from corellm.sampling_params import SamplingParams
from corellm.scheduling.batch import NewSequence
from corellm_encoder_decoder.encoder_prompt import EncoderPrompt

VOCAB, CHOICES, NOT_FIRST = 40, ((33, 7), (5,)), (2, 9)


def allowed(outputs: list[int], params: SamplingParams, *, opening: object = (CHOICES, NOT_FIRST)) -> list[int]:
    """The tokens that may come behind these."""
    sequence = NewSequence("r", [1], outputs, params, (), part={"opening": opening} if opening else {})
    state, logits = SamplingState(sequence, VOCAB, 0), torch.zeros(1, VOCAB)
    if state.edits_logits:
        edit_logits(logits, [state])
    return (logits[0] > -torch.inf).nonzero().flatten().tolist()


def test_the_first_tokens_are_chosen_by_their_place() -> None:
    """One of the choices of each place; then none that may not be first; then any."""
    params, every = SamplingParams(), list(range(VOCAB))
    assert allowed([], params) == [7, 33]
    assert allowed([7], params) == [5]
    assert allowed([7, 5], params) == [token for token in every if token not in NOT_FIRST]
    assert allowed([7, 5, 2], params) == every
    assert allowed([], params, opening=((), NOT_FIRST)) == [token for token in every if token not in NOT_FIRST]
    assert allowed([], params, opening=None) == every


def test_a_requests_own_tokens_are_narrowed_behind_them() -> None:
    params = SamplingParams(allowed_token_ids=[2, 3, 4])
    assert allowed([], params) == [7, 33]
    assert allowed([7, 5], params) == [3, 4]


def test_tokens_of_a_step_ahead_wait_until_the_first_free_one() -> None:
    """The worker edits logits by the number of tokens that it knows: one in flight is not counted."""
    part = EncoderPrompt.of([1, 2], 2, [], None, (CHOICES, NOT_FIRST))
    assert part.for_worker()["opening"] == (CHOICES, NOT_FIRST)
    outputs: list[int] = []
    state = SamplingState(NewSequence("r", [1], outputs, SamplingParams(), (), part=part.for_worker()), VOCAB, 0)
    waits = []
    for token in (7, 5, 3, 3):
        waits.append(state.looks_back)
        outputs.append(token)
    assert waits == [True, True, True, False]
