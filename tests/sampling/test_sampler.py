"""The sampler: the distributions are those of transformers' logits processors, and a request's tokens are its own.

Oracles: transformers' processors and warpers, `torch.log_softmax`, and formulas written out here.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from corellm.errors import InvalidParameterError, RequestFailedError
from corellm.sampling.logit_edits import edit_logits
from corellm.sampling.logprobs import LogprobsInFlight
from corellm.sampling.sampler import FAILED, Sampler, draw
from corellm.sampling.sampling_state import SamplingState
from corellm.sampling.token_weights import token_weights
from corellm.sampling_params import SamplingParams
from corellm.scheduling.batch import NewSequence

VOCAB = 300
EOS = 2


def sequence(
    params: SamplingParams,
    *,
    prompt: Sequence[int] = (1, 5, 6),
    outputs: list[int] | None = None,
    request_id: str = "r",
    bad_words: Sequence[Sequence[int]] = (),
) -> NewSequence:
    return NewSequence(request_id, prompt, [] if outputs is None else outputs, params, (), frozenset({EOS}), bad_words)


def state(params: SamplingParams, *, vocab: int = VOCAB, engine_seed: int = 0, **kwargs: Any) -> SamplingState:
    return SamplingState(sequence(params, **kwargs), vocab, engine_seed)


def logits_of(rows: int, vocab: int = VOCAB, *, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


def edited(logits: torch.Tensor, states: Sequence[SamplingState]) -> torch.Tensor:
    result = logits.clone()
    edit_logits(result, states)
    return result


def probabilities(logits: torch.Tensor, states: Sequence[SamplingState]) -> torch.Tensor:
    weights = token_weights(edited(logits, states), states)
    return weights / weights.sum(dim=-1, keepdim=True)


def assert_same_distribution(ours: torch.Tensor, scores: torch.Tensor) -> None:
    theirs = scores.softmax(dim=-1)
    assert ((ours > 0) == (theirs > 0)).all()
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)


WARPERS = {
    "temperature": ({"temperature": 0.4}, [TemperatureLogitsWarper(0.4)]),
    "top_k": ({"top_k": 7}, [TopKLogitsWarper(7)]),
    "top_k_beyond_vocab": ({"top_k": 10**6}, []),
    "top_p": ({"top_p": 0.8}, [TopPLogitsWarper(0.8)]),
    "top_p_tiny": ({"top_p": 1e-6}, [TopPLogitsWarper(1e-6)]),
    "top_p_nearly_all": ({"top_p": 0.999}, [TopPLogitsWarper(0.999)]),
    "min_p": ({"min_p": 0.07}, [MinPLogitsWarper(0.07)]),
    "min_p_one": ({"min_p": 1.0}, [MinPLogitsWarper(1.0)]),
    "all": (
        {"temperature": 1.7, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
        [TemperatureLogitsWarper(1.7), TopKLogitsWarper(40), TopPLogitsWarper(0.9), MinPLogitsWarper(0.02)],
    ),
}


@pytest.mark.parametrize("name", WARPERS)
@pytest.mark.parametrize("scale", [0.3, 4.0], ids=["flat", "peaked"])
@pytest.mark.parametrize("vocab", [100, 5000])
def test_truncation_equals_transformers_warpers(name: str, scale: float, vocab: int) -> None:
    """Temperature, top-k, top-p and min-p give transformers' distribution, also where the nucleus is most of a large
    vocabulary (5000 is beyond the widths that are searched without a sort).
    """
    kwargs, warpers = WARPERS[name]
    logits = logits_of(4, vocab, scale=scale)
    ours = probabilities(logits, [state(SamplingParams(**kwargs), vocab=vocab) for _ in range(4)])
    assert_same_distribution(ours, LogitsProcessorList(warpers)(None, logits))


def test_every_row_of_a_mixed_batch_has_its_own_truncation() -> None:
    """Rows with different parameters in one call each get what they would get alone."""
    logits = logits_of(len(WARPERS))
    ours = probabilities(logits, [state(SamplingParams(**kwargs)) for kwargs, _ in WARPERS.values()])
    for row, (_, warpers) in enumerate(WARPERS.values()):
        scores = LogitsProcessorList(warpers)(None, logits[row : row + 1])
        assert_same_distribution(ours[row : row + 1], scores)


OUTPUTS = [7, 8, 9, 7, 20, 9, 7]
PROMPT = [1, 20, 33, 33]
BAD_WORDS = [[11], [9, 7, 12], [8, 7, 13], [7, 14], [40, 41, 42, 43, 44, 45, 46, 47, 48]]
BIAS = {3: 5.0, 7: -4.0, 11: 2.5}


def test_penalties_biases_and_masks_equal_transformers_processors() -> None:
    """Each of them alone, all rows in one batch: the logits are transformers' logits.

    Bad words match against the output only, so transformers is shown the output only.
    """
    context, outputs = torch.tensor([PROMPT + OUTPUTS]), torch.tensor([OUTPUTS])
    cases: list[tuple[SamplingParams, Sequence[Sequence[int]], Any, torch.Tensor]] = [
        (SamplingParams(repetition_penalty=1.7), (), RepetitionPenaltyLogitsProcessor(1.7), context),
        (SamplingParams(repetition_penalty=0.6), (), RepetitionPenaltyLogitsProcessor(0.6), context),
        (SamplingParams(bad_words=["x"]), BAD_WORDS, NoBadWordsLogitsProcessor(BAD_WORDS), outputs),
        (SamplingParams(min_tokens=8), (), MinNewTokensLengthLogitsProcessor(len(PROMPT), 8, EOS), context),
        (SamplingParams(min_tokens=7), (), MinNewTokensLengthLogitsProcessor(len(PROMPT), 7, EOS), context),
        (
            SamplingParams(logit_bias=BIAS),
            (),
            SequenceBiasLogitsProcessor({(token,): bias for token, bias in BIAS.items()}),
            context,
        ),
    ]
    logits = logits_of(len(cases))
    states = [
        state(params, prompt=PROMPT, outputs=list(OUTPUTS), bad_words=bad_words) for params, bad_words, _, _ in cases
    ]
    ours = edited(logits, states)
    for row, (_, _, processor, ids) in enumerate(cases):
        torch.testing.assert_close(ours[row : row + 1], processor(ids, logits[row : row + 1]))
    assert not ours[3].isfinite().all()  # eight tokens wanted, seven there: end of sequence is masked
    assert ours[4].isfinite().all()


def test_frequency_and_presence_penalties_follow_the_formula() -> None:
    """`logit - count * frequency - (count > 0) * presence`, counted over the output only."""
    logits = logits_of(1)
    params = SamplingParams(frequency_penalty=0.7, presence_penalty=-0.3)
    ours = edited(logits, [state(params, prompt=PROMPT, outputs=list(OUTPUTS))])
    expected = logits.clone()
    for token, count in Counter(OUTPUTS).items():
        expected[0, token] -= 0.7 * count - 0.3
    torch.testing.assert_close(ours, expected)


def test_everything_together_in_the_documented_order() -> None:
    """Masks, bias, penalties, temperature, top-k, top-p, min-p, one after the other."""
    params = SamplingParams(
        allowed_token_ids=range(200),
        min_tokens=16,
        logit_bias=BIAS,
        repetition_penalty=1.3,
        frequency_penalty=0.2,
        presence_penalty=0.4,
        temperature=0.8,
        top_k=50,
        top_p=0.95,
        min_p=0.001,
    )
    logits = logits_of(1, scale=1.0)
    logits[0, PROMPT + OUTPUTS] = 4.0  # so that none of what is penalised is cut off
    ours = probabilities(logits, [state(params, prompt=PROMPT, outputs=list(OUTPUTS), bad_words=BAD_WORDS)])
    scores = logits.clone()
    scores[:, 200:] = -torch.inf
    before = LogitsProcessorList(
        [
            NoBadWordsLogitsProcessor(BAD_WORDS),
            MinNewTokensLengthLogitsProcessor(0, 16, EOS),
            SequenceBiasLogitsProcessor({(token,): bias for token, bias in BIAS.items()}),
        ]
    )
    scores = before(torch.tensor([OUTPUTS]), scores)
    scores = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([PROMPT + OUTPUTS]), scores)
    for token, count in Counter(OUTPUTS).items():
        scores[0, token] -= 0.2 * count + 0.4
    warpers = [TemperatureLogitsWarper(0.8), TopKLogitsWarper(50), TopPLogitsWarper(0.95), MinPLogitsWarper(0.001)]
    assert_same_distribution(ours, LogitsProcessorList(warpers)(None, scores))
    assert (ours[0, PROMPT] > 0).all()
    assert 10 < (ours > 0).sum() < 50


def test_greedy_takes_the_best_of_the_edited_logits() -> None:
    """Plain, biased, restricted and `top_k=1` rows in one batch; the given logits stay as they were."""
    logits = logits_of(4)
    before = logits.clone()
    allowed = [17, 3, 99]
    states = [
        state(SamplingParams(temperature=0)),
        state(SamplingParams(temperature=0, logit_bias={42: 100.0})),
        state(SamplingParams(temperature=0, allowed_token_ids=allowed)),
        state(SamplingParams(top_k=1)),
    ]
    best = logits.argmax(dim=-1).tolist()
    expected = [best[0], 42, max(allowed, key=lambda token: logits[2, token].item()), best[3]]
    assert Sampler()(logits, states).token_ids == expected
    assert torch.equal(logits, before)


def test_half_precision_is_computed_in_float32() -> None:
    """bfloat16 logits give the tokens and log-probabilities of the same numbers in float32."""
    half = logits_of(32, scale=5.0).bfloat16()
    params = SamplingParams(top_p=0.9, temperature=0.7, repetition_penalty=1.2, logprobs=3)

    def run(logits: torch.Tensor) -> Any:
        return Sampler()(logits, [state(params, request_id=str(row)) for row in range(32)])

    assert run(half) == run(half.float())


def chi_square(counts: Counter[int], expected: torch.Tensor, total: int) -> float:
    return sum((counts[i] - total * p) ** 2 / (total * p) for i, p in enumerate(expected.tolist()))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_drawn_tokens_follow_the_distribution(temperature: float) -> None:
    """Pearson's chi-square over 16 tokens, one request's successive tokens; fixed seeds, so it cannot flake."""
    logits = logits_of(1, 16, scale=1.0)
    outputs: list[int] = []
    running = state(SamplingParams(temperature=temperature, seed=4), vocab=16, outputs=outputs)
    for _ in range(4000):
        outputs.extend(Sampler()(logits, [running]).token_ids)
    statistic = chi_square(Counter(outputs), (logits[0] / temperature).softmax(dim=-1), len(outputs))
    assert statistic < 37.7  # 99.9 % quantile for 15 degrees of freedom


def test_neighbouring_seeds_and_requests_draw_independently() -> None:
    """The first tokens of 4000 seeds, and of 4000 unseeded requests, follow the distribution too."""
    logits = logits_of(1, 16, scale=1.0).expand(4000, 16)
    seeded = [state(SamplingParams(seed=seed), vocab=16) for seed in range(4000)]
    unseeded = [state(SamplingParams(), vocab=16, request_id=f"request-{i}") for i in range(4000)]
    for states in (seeded, unseeded):
        counts = Counter(Sampler()(logits, states).token_ids)
        assert chi_square(counts, logits[0].softmax(dim=-1), 4000) < 37.7


def logits_at(request_id: str, position: int) -> torch.Tensor:
    """What a deterministic model would give one request at one position."""
    return logits_of(1, seed=hash_of(request_id) + position, scale=2.0)[0]


def hash_of(text: str) -> int:
    return sum(ord(letter) * 1009**i for i, letter in enumerate(text)) % 10**6


REQUESTS = {
    "seeded": SamplingParams(seed=1, top_p=0.9, temperature=0.9),
    "same-seed": SamplingParams(seed=1, top_p=0.9, temperature=0.9),
    "top-k": SamplingParams(seed=2, top_k=30, repetition_penalty=1.2),
    "unseeded": SamplingParams(frequency_penalty=0.5, presence_penalty=0.1),
    "greedy": SamplingParams(temperature=0, repetition_penalty=1.5, min_tokens=10),
    "plain": SamplingParams(temperature=0),
    "min-p": SamplingParams(seed=-(2**63), min_p=0.05),
}


def run_requests(
    names: Sequence[str], steps: int = 20, *, preempt: random.Random | None = None
) -> dict[str, list[int]]:
    """Run requests in one batch; with `preempt`, in a new order every step, and now and then remade."""
    outputs: dict[str, list[int]] = {name: [] for name in names}

    def made(name: str) -> SamplingState:
        return state(REQUESTS[name], outputs=outputs[name], request_id=name, bad_words=[[4, 5]])

    states = {name: made(name) for name in names}
    for step in range(steps):
        order = list(names)
        if preempt is not None:
            preempt.shuffle(order)
            states.update({name: made(name) for name in names if preempt.random() < 0.3})
        logits = torch.stack([logits_at(name, step) for name in order])
        for name, token in zip(order, Sampler()(logits, [states[name] for name in order]).token_ids, strict=True):
            outputs[name].append(token)
    return outputs


def test_tokens_depend_neither_on_the_batch_nor_on_preemption() -> None:
    """Alone, together, shuffled and with states remade midway: the same tokens, seeded or not."""
    together = run_requests(list(REQUESTS))
    assert run_requests(list(REQUESTS), preempt=random.Random(0)) == together
    for name in REQUESTS:
        assert run_requests([name]) == {name: together[name]}


def test_random_streams_are_separate() -> None:
    """Requests without a seed differ from each other and between engine seeds; equal seeds agree; children differ."""
    flat = torch.zeros(1, VOCAB)

    def first_tokens(params: SamplingParams, request_id: str = "a", engine_seed: int = 0) -> tuple[int, ...]:
        outputs: list[int] = []
        running = state(params, outputs=outputs, request_id=request_id, engine_seed=engine_seed)
        for _ in range(8):
            outputs.extend(Sampler()(flat, [running]).token_ids)
        return tuple(outputs)

    unseeded = SamplingParams()
    assert first_tokens(unseeded) == first_tokens(unseeded)
    assert len({first_tokens(unseeded, "a"), first_tokens(unseeded, "b"), first_tokens(unseeded, "a", 1)}) == 3
    seeded = SamplingParams(seed=5, n=4)
    assert first_tokens(seeded, "a", 0) == first_tokens(seeded, "b", 1)
    assert len({first_tokens(seeded.child(index)) for index in range(4)}) == 4


@settings(deadline=None)
@given(
    weights=st.lists(st.sampled_from([0.0, 0.0, 1e-30, 1e-7, 0.3, 1.0]), min_size=1, max_size=700).filter(any),
    uniform=st.sampled_from([0.0, 1e-300, 0.5, 1 - 2**-53]) | st.floats(0, 1, exclude_max=True),
)
def test_a_token_of_probability_zero_is_never_drawn(weights: list[float], uniform: float) -> None:
    """Whatever the weights and however extreme the random number."""
    tokens = draw(torch.tensor([weights]), torch.tensor([uniform], dtype=torch.float64))
    assert weights[int(tokens[0])] > 0


def test_draw_inverts_the_cumulative_distribution() -> None:
    """Against `torch.searchsorted` on a plain cumulative sum, across the borders of blocks."""
    weights = torch.rand(200, 1000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    uniforms = torch.rand(200, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    ends = weights.cumsum(dim=-1)
    expected = torch.searchsorted(ends, uniforms[:, None] * ends[:, -1:], right=True)[:, 0]
    assert torch.equal(draw(weights, uniforms), expected)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bad_row_fails_alone(temperature: float) -> None:
    """NaN, infinity, nothing possible, or parameters that leave nothing: a typed error for that row only."""
    logits = logits_of(6)
    params = SamplingParams(temperature=temperature, seed=3)
    good = Sampler()(logits, [state(params) for _ in range(6)]).token_ids
    logits[0, 17] = torch.nan
    logits[1, 17] = torch.inf
    logits[2] = -torch.inf
    states = [state(params) for _ in range(6)]
    states[0] = state(SamplingParams(temperature=temperature, allowed_token_ids=[1]))  # NaN outside what is allowed
    states[3] = state(SamplingParams(temperature=temperature, allowed_token_ids=[EOS], min_tokens=2, logprobs=1))
    output = Sampler()(logits, states)
    assert sorted(output.failed) == [0, 1, 2, 3]
    assert output.token_ids == [FAILED] * 4 + good[4:]
    assert [type(output.failed[row]) for row in range(4)] == [RequestFailedError] * 3 + [InvalidParameterError]
    assert "allowed_token_ids, min_tokens" in str(output.failed[3])
    assert output.logprobs == [None] * 6


def test_extreme_parameters_leave_finite_distributions() -> None:
    """Extreme temperatures, a tiny repetition penalty and huge logits overflow nowhere and give a possible token."""
    logits = torch.tensor([[3e38, -3e38, 1.0, 0.0, -torch.inf]]).repeat(5, 1)
    params = [
        SamplingParams(temperature=1e30),
        SamplingParams(temperature=1.1e-5),
        SamplingParams(repetition_penalty=1e-45),
        SamplingParams(repetition_penalty=10.0, temperature=0.0),
        SamplingParams(top_p=1e-300, top_k=4),
    ]
    output = Sampler()(logits, [state(p, vocab=5, prompt=(0, 1, 2, 3, 4)) for p in params])
    assert not output.failed
    assert all(logits[row, token].isfinite() for row, token in enumerate(output.token_ids))


def test_equal_logits_at_the_border_are_treated_equally() -> None:
    """Ties with the last token kept are kept, so the outcome cannot depend on which of them a sort puts first."""
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]]).repeat(2, 1)
    ours = probabilities(logits, [state(SamplingParams(top_k=2), vocab=5), state(SamplingParams(top_p=0.6), vocab=5)])
    assert (ours > 0).tolist() == [[True, True, True, True, False]] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logprobs_are_those_of_the_raw_model(dtype: torch.dtype) -> None:
    """Log-softmax of the unprocessed logits: sampled token first, then the best in order, ranks counted by value."""
    logits = logits_of(3).to(dtype)
    states = [
        state(SamplingParams(temperature=0, logit_bias={77: 100.0}, logprobs=4)),
        state(SamplingParams(seed=1, top_k=5, temperature=0.3, logprobs=0)),
        state(SamplingParams(seed=1)),
    ]
    output = Sampler()(logits, states)
    expected = logits.float().log_softmax(dim=-1)
    first, second, third = output.logprobs
    assert first is not None
    best_first = logits[0].float().sort(descending=True, stable=True).indices
    assert first.token_ids == [77, *best_first[:4].tolist()]
    assert first.logprobs == pytest.approx(expected[0, first.token_ids].tolist(), abs=1e-5)
    assert first.ranks == [1 + int((logits[0] > logits[0, token]).sum()) for token in first.token_ids]
    assert second is not None
    assert second.token_ids == [output.token_ids[1]]
    assert third is None


@pytest.mark.parametrize("others", [None, -1, 7])
def test_logprobs_of_stated_tokens(others: int | None) -> None:
    """Those of torch's log-softmax, with ranks counted by value, whatever the other rows of the batch ask for."""
    logits = logits_of(4)
    logits[0, 40] = logits[0, 41]
    stated = (41, 3, 299)
    states = [
        state(SamplingParams(temperature=0, logit_bias={77: 100.0}, logprob_token_ids=[*stated, 3])),
        state(SamplingParams(temperature=0, logprobs=2, logprob_token_ids=[5])),
        state(SamplingParams(temperature=0, logprobs=others)),
        state(SamplingParams(temperature=0, logprobs=0)),
    ]
    found = Sampler()(logits, states).logprobs
    expected = logits.log_softmax(dim=-1)
    assert found[0] is not None
    assert found[0].token_ids == [77, *stated]
    assert found[1] is not None
    assert found[1].token_ids == [int(logits[1].argmax()), *logits[1].topk(2).indices.tolist(), 5]
    for row in (0, 1):
        one = found[row]
        assert one is not None
        assert one.logprobs == pytest.approx(expected[row, one.token_ids].tolist(), abs=1e-5)
        assert one.ranks == [1 + int((logits[row] > logits[row, token]).sum()) for token in one.token_ids]
    assert [None if one is None else len(one.token_ids) for one in found[2:]] == [
        {None: None, -1: VOCAB + 1, 7: 8}[others], 1
    ]  # fmt: skip


def test_stated_tokens_are_checked() -> None:
    """Without `logprobs` it becomes 0; too many, and what is no token id, are refused by name."""
    assert SamplingParams(logprob_token_ids=[4]).logprobs == 0
    assert SamplingParams(logprob_token_ids=[4], logprobs=3).logprobs == 3
    assert SamplingParams(logprob_token_ids=[]).logprobs is None
    for wrong in ([-1], "4", [True], range(129)):
        with pytest.raises(InvalidParameterError) as caught:
            SamplingParams(logprob_token_ids=wrong)  # type: ignore[arg-type]
        assert caught.value.param == "logprob_token_ids"


def test_logprobs_of_ties_and_of_tokens_beyond_the_vocabulary() -> None:
    """Equal logits share a rank; a placeholder id the model has no logit for is impossible and comes last."""
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0], [1.0, 3.0, 3.0, 0.0]])
    tie, beyond = LogprobsInFlight(logits, torch.tensor([0, 99]), 10).wait()
    assert (tie.token_ids[0], tie.ranks[0], sorted(tie.ranks[1:])) == (0, 3, [1, 1, 3, 4])
    assert (beyond.token_ids[0], beyond.logprobs[0], beyond.ranks[0]) == (99, -torch.inf, 5)


class CountingList(list[int]):
    """A list that counts how many elements were read."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.reads += len(range(*index.indices(len(self)))) if isinstance(index, slice) else 1
        return super().__getitem__(index)

    def __iter__(self) -> Any:
        self.reads += len(self)
        return super().__iter__()


def test_a_step_reads_only_what_is_new() -> None:
    """With every parameter that looks at the past, a step costs the same after 400 tokens as after 100."""
    outputs = CountingList(range(50))
    params = SamplingParams(repetition_penalty=1.1, frequency_penalty=0.1, min_tokens=5, seed=0, temperature=0.5)
    running = state(params, outputs=outputs, bad_words=[[3, 4, 5], [9]])
    logits = logits_of(1)
    Sampler()(logits, [running])
    reads = []
    for _ in range(400):
        outputs.append(Sampler()(logits, [running]).token_ids[0])
        outputs.reads = 0
        running.additions()
        running.seen_tokens()
        reads.append(outputs.reads)
    assert max(reads) <= 5
    ids, counts = running.seen_tokens()
    tally = dict(zip(ids.tolist(), counts.tolist(), strict=True))
    assert tally == {**dict.fromkeys((1, 5, 6), 0), **Counter(list(outputs))}


def test_token_ids_outside_the_vocabulary_are_ignored() -> None:
    """A prompt's placeholder ids (and anything else the model has no logit for) change nothing."""
    params = SamplingParams(repetition_penalty=2.0, logit_bias={VOCAB: 5.0}, allowed_token_ids=[4, VOCAB + 7])
    running = state(params, prompt=[1, VOCAB, 10**6], bad_words=[[VOCAB], [1, VOCAB]])
    assert Sampler()(logits_of(1), [running]).token_ids == [4]


def test_an_empty_batch() -> None:
    """No rows, no tokens."""
    output = Sampler()(torch.empty(0, VOCAB), [])
    assert (output.token_ids, output.logprobs, output.failed) == ([], [], {})


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_rows_logprobs_do_not_depend_on_other_rows(threads: int) -> None:
    """To the last bit, for any number of threads and of tokens reported; which of equal ones are reported is fixed."""
    logits = torch.randn((24, 70_000), generator=torch.Generator().manual_seed(0)).mul(3).bfloat16()
    tokens = torch.arange(len(logits))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        together = LogprobsInFlight(logits, tokens, 40).wait()
        torch.set_num_threads(threads)
        for number, row in enumerate(together):
            one = slice(number, number + 1)
            (alone,) = LogprobsInFlight(logits[one], tokens[one], 3).wait()
            assert alone.logprobs == row.logprobs[:4]
            assert alone.token_ids == row.token_ids[:4]
    finally:
        torch.set_num_threads(before)
    ranked = [pair for row in together for pair in pairwise(zip(row.ranks[1:], row.token_ids[1:], strict=True))]
    ties = [(first, second) for (rank, first), (other, second) in ranked if rank == other]
    assert ties
    assert all(first < second for first, second in ties)
