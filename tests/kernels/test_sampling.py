"""Sampling on the device chooses the tokens that the worker's own functions choose, with kernels and twins alike.

Sums in another order may move a border between two tokens by a rounding: a token is right that random numbers and a
top-p from a few millionths less to a few millionths more would give with the weights of the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from corellm.sampling.constraint import pack
from corellm.sampling.extensions import SamplingExtensions
from corellm.sampling.logit_edits import Entries, LogitEdits, collect_edits, edit_logits
from corellm.sampling.sampler import draw
from corellm.sampling.sampling_state import SamplingState
from corellm.sampling.token_weights import token_weights
from corellm.sampling_params import SamplingParams
from corellm.scheduling.batch import NewSequence
from corellm_kernels.cpu.library import unavailable
from corellm_kernels.cpu.sampling import sample as compiled_sample
from corellm_kernels.gpu.logits import edited
from corellm_kernels.gpu.sampling import FAILED, sample, sample_reference
from corellm_kernels.logit_edits import edited_by_torch
from tests.kernels.comparing import DEVICE, DTYPES
from tests.sampling.automaton import Automata, automaton

LAST = 1 - 2.0**-53
"""The last random number."""
BESIDE = 5e-6
SAMPLERS = [sample, sample_reference]
if DEVICE.type == "cpu" and unavailable() is None:
    SAMPLERS.append(compiled_sample)


def state(params: SamplingParams, vocab: int, prompt: Sequence[int] = (), outputs: Sequence[int] = ()) -> SamplingState:
    sequence = NewSequence("r", list(prompt), list(outputs), params, (), frozenset({2}), [[5], [3, 4]])
    kinds = SamplingExtensions(Automata().register_constraints(None, vocab))
    return SamplingState(sequence, vocab, 0, kinds)


def run(sampler: Callable[..., Tensor], logits: Tensor, params: Sequence[SamplingParams], uniforms: Tensor) -> Tensor:
    """With each row's parameters as tensors on the device."""
    temperature = torch.tensor([p.temperature for p in params], device=DEVICE)
    top_k = torch.tensor([p.top_k for p in params], dtype=torch.int32, device=DEVICE)
    top_p = torch.tensor([p.top_p for p in params], dtype=torch.float64, device=DEVICE)
    min_p = torch.tensor([p.min_p for p in params], device=DEVICE)
    tokens, largest = sampler(logits.to(DEVICE), temperature, top_k, top_p, min_p, uniforms.to(DEVICE))
    assert torch.equal(largest.cpu(), logits.float().nan_to_num(torch.inf, torch.inf, -torch.inf).amax(dim=-1))
    return tokens.cpu()


def assert_chosen(tokens: Tensor, logits: Tensor, params: Sequence[SamplingParams], uniforms: Tensor) -> None:
    """Every token is kept, and the running sum passes the random number at it."""
    assert (tokens.dtype, tokens.shape) == (torch.int64, logits.shape[:1])
    vocab = logits.shape[1]
    greedy = torch.tensor([state(p, vocab).greedy for p in params])
    right = greedy & (tokens == logits.argmax(dim=-1))
    for share in (1.0, 1 - BESIDE, 1 + BESIDE):
        moved = [replace(p, temperature=p.temperature or 1.0, top_p=min(p.top_p * share, 1.0)) for p in params]
        weights = token_weights(logits.float(), [state(p, vocab) for p in moved]).double()
        ends, target = weights.cumsum(dim=-1), uniforms * weights.sum(dim=-1)
        end, own = ends.gather(1, tokens[:, None])[:, 0], weights.gather(1, tokens[:, None])[:, 0]
        right |= ~greedy & (own > 0) & (end - own <= target * (1 + BESIDE)) & (target * (1 - BESIDE) <= end)
    assert right.all(), (tokens, right, params)


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1.1e-5, 0.3, 1.0, 1.0, 2.0]),
    top_k=st.sampled_from([0, 0, 1, 2, 40, 700, 10**6]),
    top_p=st.sampled_from([1.0, 1.0, 1e-6, 0.1, 0.5, 0.9, 0.999]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 1.0]),
)
ROWS = st.lists(
    st.tuples(PARAMS, st.sampled_from([0.0, LAST]) | st.floats(0, 1, exclude_max=True)), min_size=1, max_size=4
)
SHAPING: dict[str, Callable[[Tensor], Tensor]] = {
    "as drawn": lambda logits: logits,
    "descending": lambda logits: logits.sort(dim=-1, descending=True).values,  # the last token kept is the bound
    "with ties": lambda logits: logits.round(),
    "with holes": lambda logits: logits.masked_fill(logits < -logits[:, :1].abs(), -torch.inf),
}


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25, deadline=None)
@given(
    rows=ROWS,
    vocab=st.sampled_from([1, 7, 300, 4096, 4097, 9001]),
    scale=st.sampled_from([0.1, 1.0, 6.0]),
    shape=st.sampled_from(list(SHAPING)),
    seed=st.integers(0, 99),
)
def test_tokens_are_those_of_the_worker(
    dtype: torch.dtype, rows: list[tuple[SamplingParams, float]], vocab: int, scale: float, shape: str, seed: int
) -> None:
    params, uniforms = [p for p, _ in rows], torch.tensor([u for _, u in rows], dtype=torch.float64)
    drawn = torch.randn(len(rows), vocab, generator=torch.Generator().manual_seed(seed)) * scale
    logits = SHAPING[shape](drawn).to(dtype)
    for sampler in SAMPLERS:
        assert_chosen(run(sampler, logits, params, uniforms), logits, params, uniforms)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_tokens_equal_those_drawn_by_the_worker(sampler: Callable[..., Tensor]) -> None:
    """Where no border is near; and the last of tokens in descending order is the last that is kept."""
    generator = torch.Generator().manual_seed(7)
    logits, uniforms = torch.randn(16, 9001, generator=generator) * 4, torch.rand(16, generator=generator).double()
    params = [SamplingParams(temperature=0.8, top_k=k, top_p=p) for k in (0, 3, 50, 2000) for p in (0.2, 0.8, 0.99, 1)]
    expected = draw(token_weights(logits.clone(), [state(p, 9001) for p in params]), uniforms)
    assert torch.equal(run(sampler, logits, params, uniforms), expected)
    logits, uniforms = logits.sort(dim=-1, descending=True).values, torch.full_like(uniforms, LAST)
    assert_chosen(run(sampler, logits, params, uniforms), logits, params, uniforms)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_random_number_at_a_border_gives_the_token_after_it(sampler: Callable[..., Tensor]) -> None:
    """Sums of equal weights are exact: at tokens, at blocks and at chunks."""
    expected = torch.tensor([0, 1, 63, 64, 4095, 4096, 8191])
    params = [SamplingParams()] * len(expected)
    assert torch.equal(run(sampler, torch.zeros(len(expected), 8192), params, expected.double() / 8192), expected)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_more_tokens_near_the_bound_than_the_list_holds(sampler: Callable[..., Tensor], spread: float) -> None:
    """With 20000 tokens of nearly, or quite, one weight, and some better ones, the row itself is searched."""
    logits = torch.linspace(spread, 0, 20100).repeat(4, 1)
    logits[:, :100] += 1.7
    params = [
        SamplingParams(top_p=0.4),
        SamplingParams(top_k=12345),
        SamplingParams(top_k=12345, top_p=0.3),
        SamplingParams(top_p=0.4, min_p=0.18),
    ]
    for uniform in (0.37, LAST):
        uniforms = torch.full((4,), uniform, dtype=torch.float64)
        assert_chosen(run(sampler, logits, params, uniforms), logits, params, uniforms)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_row_alone_gets_the_token_it_gets_in_a_batch(sampler: Callable[..., Tensor]) -> None:
    generator = torch.Generator().manual_seed(2)
    logits, uniforms = torch.randn(3, 5000, generator=generator), torch.rand(3, dtype=torch.float64)
    params = [SamplingParams(top_k=50, top_p=0.9), SamplingParams(temperature=0.0), SamplingParams(top_p=0.7)]
    together = run(sampler, logits, params, uniforms)
    alone = [run(sampler, logits[i : i + 1], params[i : i + 1], uniforms[i : i + 1]) for i in range(3)]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_parameters_that_no_row_uses_may_be_left_out(sampler: Callable[..., Tensor]) -> None:
    """Nothing left out, top-k and top-p, or everything: the same tokens, from a view of wider rows."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(4, 6000, generator=generator).to(DEVICE)[:, :5001]
    temperature = torch.tensor([1.0, 0.5, 0.0, 2.0], device=DEVICE)
    uniforms = torch.rand(4, dtype=torch.float64, generator=generator).to(DEVICE)
    zeros, ones = torch.zeros_like(temperature), torch.ones_like(temperature)
    top_k, bound = zeros.long(), zeros + 0.1

    def chosen(*options: Tensor | None) -> list[int]:
        return sampler(logits, temperature, *options, uniforms)[0].tolist()  # type: ignore[no-any-return]

    assert chosen(None, None, None) == chosen(top_k, ones, zeros)
    assert chosen(None, None, bound) == chosen(top_k, ones, bound)
    assert chosen(top_k + 9, None, None) == chosen(top_k + 9, ones, zeros)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_cannot_be_sampled_is_reported(sampler: Callable[..., Tensor], temperature: float) -> None:
    logits = torch.randn(5, 5000, generator=torch.Generator().manual_seed(4))
    params = [SamplingParams(temperature=temperature, top_k=5, top_p=0.9)] * 5
    uniforms = torch.full((5,), 0.5, dtype=torch.float64)
    good = run(sampler, logits, params, uniforms)
    logits[0, 4999], logits[1, 17], logits[2] = torch.nan, torch.inf, -torch.inf
    assert run(sampler, logits, params, uniforms).tolist() == [FAILED] * 3 + good[3:].tolist()


def only_best(logits: Tensor) -> Tensor:
    """By top-k, and the last random number."""
    ones = torch.ones(len(logits), device=DEVICE)
    return sample(logits, ones, ones.int(), None, None, ones.double() * LAST)[0]


def best_sample(logits: Tensor) -> Tensor:
    """Without a temperature."""
    return sample(logits)[0]


def best_reference(logits: Tensor) -> Tensor:
    """The same of the twin."""
    return sample_reference(logits)[0]


def best_compiled(logits: Tensor) -> Tensor:
    """In C++."""
    return compiled_sample(logits)[0]


@pytest.mark.parametrize(
    "best", [only_best, best_sample, best_reference, *([best_compiled] if compiled_sample in SAMPLERS else [])]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_best_token_is_the_first_of_equals(best: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    logits = torch.randn(5, 9001, generator=torch.Generator().manual_seed(5)).to(dtype)
    logits[0, [4095, 4096, 9000]] = logits[1, 9000] = logits[2, [8191, 8192]] = 99.0
    assert best(logits.to(DEVICE)).tolist()[:3] == [4095, 9000, 8191]
    logits[3, 8999], logits[4] = torch.nan, -torch.inf
    assert best(logits.to(DEVICE)).tolist()[3:] == [FAILED, FAILED]


EDITORS = [edited, edited_by_torch]


@pytest.mark.filterwarnings("ignore:overflow encountered in divide:RuntimeWarning")  # NumPy's, in the interpreter
@pytest.mark.parametrize("editor", EDITORS)
@pytest.mark.parametrize("vocab", [100, 3001])
def test_edits_are_those_of_the_worker(editor: Callable[..., Tensor], vocab: int) -> None:
    """Allowed tokens, additions and penalties, on rows with all of them, with some, and with none."""
    generator = torch.Generator().manual_seed(6)
    long = torch.randint(0, vocab, (3000,), generator=generator).tolist()
    bias = {3: 5.0, 5: 1.0, 9: -2.5}
    states = [
        state(SamplingParams(), vocab),
        state(
            SamplingParams(repetition_penalty=1.7, presence_penalty=0.4, logit_bias=bias),
            vocab,
            prompt=long,
            outputs=[3, 3, 8],
        ),
        state(SamplingParams(frequency_penalty=0.5, presence_penalty=-0.3, min_tokens=9), vocab, outputs=[3, 3, 9]),
        state(SamplingParams(allowed_token_ids=[0, 31, 32, 5, vocab - 1]), vocab),
        state(SamplingParams(repetition_penalty=1e-30, allowed_token_ids=range(2, 90)), vocab, outputs=long[:40]),
        state(SamplingParams(presence_penalty=0.5, constraint=automaton(start=4)), vocab, outputs=[3, 8]),
    ]
    logits = torch.randn(len(states), vocab, generator=generator) * 1e9
    logits[1] /= 1e8
    logits[2, 9] = -torch.inf
    given, expected = (logits.to(DEVICE, copy=True) for _ in range(2))
    edit_logits(expected, states)
    torch.testing.assert_close(editor(given, collect_edits(states, DEVICE)), expected)
    assert torch.equal(given.cpu(), logits)
    assert expected.isneginf().any()
    assert (expected == torch.finfo(torch.float32).max).any()


@pytest.mark.parametrize("editor", EDITORS)
@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 2047, 2048, 2049, 5000])
@pytest.mark.parametrize("masked", [[3, 0, 1], [0, 1, 2, 3], [2, 3, 0, 1]])
def test_packed_masks_are_those_of_bools(editor: Callable[..., Tensor], vocab: int, masked: list[int]) -> None:
    """Masks of some rows or all, in any order; bits beyond the vocabulary have no meaning."""
    generator = torch.Generator().manual_seed(vocab)
    logits, may = torch.randn(4, vocab, generator=generator), torch.rand(len(masked), vocab, generator=generator) < 0.5
    masks = np.stack([pack(row.nonzero()[:, 0].numpy(), vocab) for row in may])
    if vocab % 32:
        masks[:, -1] |= -1 << vocab % 32
    rows = torch.tensor(masked)
    wanted = logits.clone()
    wanted[rows] = logits[rows].masked_fill(~may, -torch.inf)
    edits = LogitEdits(torch.from_numpy(masks).to(DEVICE), rows.to(DEVICE), None, None, None)
    assert torch.equal(editor(logits.to(DEVICE), edits).cpu(), wanted)


@pytest.mark.parametrize("editor", EDITORS)
def test_edits_hide_no_broken_logit(editor: Callable[..., Tensor]) -> None:
    """NaN and plus infinity stay, be they forbidden, penalised or clamped; ids outside the vocabulary are ignored."""
    params = SamplingParams(repetition_penalty=2.0, allowed_token_ids=[1, 39])
    edits = collect_edits([state(params, 40, prompt=range(3))] * 2, DEVICE)
    entries = torch.tensor([0, 1, 2, -1, 40] * 2, device=DEVICE), torch.ones(10, device=DEVICE)
    edits = replace(edits, seen=Entries(*entries, torch.tensor([0, 5, 10], device=DEVICE)))
    logits = torch.full((2, 40), 4.0)
    logits[0, [0, 7]] = torch.nan
    logits[1, [2, 30]] = torch.inf
    after = editor(logits.to(DEVICE), edits).cpu()
    assert after[0].isnan().nonzero().flatten().tolist() == [0, 7]
    assert (after[1] == torch.inf).nonzero().flatten().tolist() == [2, 30]
    assert after.isneginf().sum(dim=1).tolist() == [36, 36]
    assert after[:, [1, 39]].tolist() == [[2.0, 4.0]] * 2
