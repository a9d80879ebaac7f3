"""Constraints on sampling: what a sequence's state asks of them, and the masks that come of it."""

from __future__ import annotations

import pickle
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corellm import LLM
from corellm.errors import ContractError, InvalidParameterError, RequestFailedError
from corellm.hookspecs import hookimpl
from corellm.plugin.extensions import load_extensions
from corellm.sampling.constraint import TokenMask, num_words, pack
from corellm.sampling.extensions import SamplingExtensions, find_extensions
from corellm.sampling.logit_edits import LogitEdits, apply_edits
from corellm.sampling.sampler import FAILED, Sampler
from corellm.sampling.sampling_state import SamplingState
from corellm.sampling_params import ConstraintParams, SamplingParams
from corellm.scheduling.batch import NewSequence
from tests.sampling.automaton import Automata, Automaton, allowed, automata, automaton

VOCAB = 90
EOS = 2
KINDS = SamplingExtensions(Automata().register_constraints(None, VOCAB))


def state(params: SamplingParams, outputs: list[int]) -> SamplingState:
    sequence = NewSequence("r", [1, 2], outputs, params, (), frozenset({EOS}))
    return SamplingState(sequence, VOCAB, 0, KINDS)


def tokens_of(mask: TokenMask | None, vocab_size: int = VOCAB) -> list[int]:
    assert mask is not None
    return [token for token in range(vocab_size) if mask[token // 32] >> token % 32 & 1]


@given(vocab_size=st.integers(1, 200), seed=st.integers(0, 99))
def test_packed_masks_are_those_of_bools(vocab_size: int, seed: int) -> None:
    """Tokens packed, unpacked bit by bit, and applied to logits; bits beyond the vocabulary have no meaning."""
    generator = torch.Generator().manual_seed(seed)
    may = torch.rand(3, vocab_size, generator=generator) < 0.4
    masks = np.stack([pack(row.nonzero()[:, 0].numpy(), vocab_size) for row in may])
    assert masks.shape == (3, num_words(vocab_size))
    assert masks.dtype == np.int32
    assert [tokens_of(mask, vocab_size) for mask in masks] == [row.nonzero()[:, 0].tolist() for row in may]
    if vocab_size % 32:
        masks[:, -1] |= -1 << vocab_size % 32
    logits = torch.randn(4, vocab_size, generator=generator)
    wanted = logits.clone()
    wanted[[3, 0, 1]] = logits[[3, 0, 1]].masked_fill(~may, -torch.inf)
    apply_edits(logits, LogitEdits(torch.from_numpy(masks), torch.tensor([3, 0, 1]), None, None, None))
    assert torch.equal(logits, wanted)


def test_what_a_constraint_foresees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind tokens that are not in the output yet, and without a trace; none if it fails, or the output has ended."""
    params, outputs = SamplingParams(constraint=automaton(start=3)), [3, 5]
    following = state(params, outputs)
    before = tokens_of(following.allowed_tokens())
    assert not following.foreseen([before[0]])  # this one does not say
    monkeypatch.setattr(Automaton, "foresee", lambda self: [len(self._states)], raising=False)
    assert following.foreseen([before[0]]) == [4]
    assert not following.foreseen([before[0], EOS])
    assert tokens_of(following.allowed_tokens()) == before
    monkeypatch.setattr(Automaton, "foresee", Mock(side_effect=RuntimeError), raising=False)
    assert not following.foreseen([before[0]])
    assert tokens_of(following.allowed_tokens()) == before
    assert not state(SamplingParams(), outputs).foreseen([7])


@pytest.mark.parametrize("restarts", [False, True])
def test_a_failure_behind_drafts_leaves_the_state_as_it_was(restarts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The constraint is made anew, or begins again, if it can: what it counts is not forgotten then."""
    outputs = [3, 5]
    following = state(SamplingParams(constraint=automaton(start=3, fails="accept", at=4)), outputs)
    if restarts:
        monkeypatch.setattr(Automaton, "restart", lambda self: self.rollback(self._num_accepted), raising=False)
    before = tokens_of(following.allowed_tokens())
    made = following._constraint
    for look in (lambda drafts: following.after(drafts).allowed_tokens(), following.foreseen):
        drafts = list[int]()
        for _ in range(3):
            drafts.append(tokens_of(following.after(drafts).allowed_tokens())[0])
        assert not np.any(look(drafts))  # the third is not taken in
        assert tokens_of(following.allowed_tokens()) == before
        assert (following._constraint is made) == restarts
    assert following.failure is None


@given(outputs=st.lists(st.integers(0, VOCAB - 1), max_size=12), cut=st.integers(0, 12))
def test_a_state_made_again_asks_for_the_same_tokens(outputs: list[int], cut: int) -> None:
    """One that followed the output from the beginning, one made after a preemption, and the rule itself."""
    params = SamplingParams(constraint=automaton(start=3))
    growing: list[int] = outputs[:cut]
    following = state(params, growing)
    for token in [*outputs[cut:], None]:
        following.allowed_tokens()
        again = following.allowed_tokens()  # a step that runs twice
        assert tokens_of(again) == tokens_of(state(params, list(growing)).allowed_tokens())
        assert tokens_of(again) == allowed(growing, VOCAB, start=3)
        if token is not None:
            growing.append(token)


@given(
    before=st.lists(st.integers(0, VOCAB - 1), max_size=6),
    drafted=st.lists(st.integers(0, VOCAB - 1), max_size=6),
    after=st.lists(st.integers(0, VOCAB - 1), max_size=6),
)
def test_what_is_rolled_back_leaves_no_trace(before: list[int], drafted: list[int], after: list[int]) -> None:
    constraint = KINDS.make(automaton(), frozenset())

    def follow(token_ids: Sequence[int]) -> list[list[int]]:
        masks = []
        for token in token_ids:
            constraint.accept(token)
            constraint.fill(mask := np.zeros(num_words(VOCAB), dtype=np.int32))
            masks.append(tokens_of(mask))
        return masks

    follow(before)
    follow(drafted)
    constraint.rollback(len(drafted))
    assert follow(after) == [allowed([*before, *after[: i + 1]], VOCAB) for i in range(len(after))]


def test_allowed_tokens_and_a_constraint_both_hold() -> None:
    limited = state(SamplingParams(constraint=automaton(), allowed_token_ids=range(20, 50)), [5])
    assert tokens_of(limited.allowed_tokens()) == [t for t in allowed([5], VOCAB) if 20 <= t < 50]
    assert state(SamplingParams(), []).allowed_tokens() is None
    assert not state(SamplingParams(), []).edits_logits
    assert limited.edits_logits


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_constraint_that_fails_ends_its_row_alone(temperature: float) -> None:
    """In making, filling and accepting, or with no token left; asked again it fails with the same error."""
    params = SamplingParams(temperature=temperature, seed=1)
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(0))
    faults = [None, "always", "fill", "accept", "no token", None]
    constraints = [automaton() if fault is None else automaton(fails=fault) for fault in faults]
    outputs: list[list[int]] = [[], [], [], [7], [], [4]]
    states = [
        state(SamplingParams(temperature=temperature, seed=1, constraint=constraint, logprobs=0), list(tokens))
        for constraint, tokens in zip(constraints, outputs, strict=True)
    ]
    states[0] = state(params, [])
    for output in (Sampler()(logits, states), Sampler()(logits, states)):
        assert sorted(output.failed) == [1, 2, 3, 4]
        assert output.token_ids[1:5] == [FAILED] * 4
        assert output.token_ids[0] == Sampler()(logits[:1], [state(params, [])]).token_ids[0]
        assert output.token_ids[5] in allowed([4], VOCAB)
        for row, words in {
            1: "making the constraint 'automaton' failed with RuntimeError: the automaton fails in always",
            2: "token 0: the constraint 'automaton' failed with RuntimeError: the automaton fails in fill",
            3: "token 1: the constraint 'automaton' failed with RuntimeError: the automaton fails in accept",
        }.items():
            with pytest.raises(RequestFailedError, match=words):
                raise output.failed[row]
        with pytest.raises(InvalidParameterError, match="token 0: constraint leave no token") as raised:
            raise output.failed[4]
        assert raised.value.param == "constraint"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SamplingParams(constraint={"kind": "x"}), "constraint must be a ConstraintParams, got {'kind'"),  # type: ignore[arg-type]
        (lambda: ConstraintParams("", "x"), "a kind and a definition, both strings; got ''"),
        (lambda: ConstraintParams("automaton", {}), "both strings; got 'automaton' and {}"),  # type: ignore[arg-type]
    ],
)
def test_parameters_of_wrong_types(make: Callable[[], object], words: str) -> None:
    with pytest.raises(InvalidParameterError, match=re.escape(words)) as raised:
        make()
    assert raised.value.param == "constraint"


def test_parameters_go_to_other_processes() -> None:
    params = SamplingParams(n=2, constraint=automaton(9))
    assert params.clone().constraint == params.child(1).constraint == automaton(9)
    assert pickle.loads(pickle.dumps(params)) == params
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_kinds_are_those_that_extensions_make() -> None:
    """An unknown one is refused with those that are known, a wrong definition by its extension."""
    with pytest.raises(InvalidParameterError, match=r"'grammar' \(kinds that are known: none\)") as raised:
        find_extensions(None, VOCAB).check(ConstraintParams("grammar", ""))
    assert raised.value.param == "constraint"
    with automata():
        kinds = find_extensions(None, VOCAB)
        with pytest.raises(InvalidParameterError, match=r"'grammar' \(kinds that are known: automaton\)"):
            kinds.check(ConstraintParams("grammar", ""))
        with pytest.raises(InvalidParameterError, match=r"no automaton: '\{'"):
            kinds.check(ConstraintParams("automaton", "{"))
        other = Automata()
        load_extensions().register(other)
        try:
            with pytest.raises(ContractError, match="both make constraints of the kind 'automaton'; uninstall one"):
                find_extensions(None, VOCAB)
        finally:
            load_extensions().unregister(other)


def test_what_constraints_share_is_prepared_where_the_model_runs(tiny_llava: Path) -> None:
    """While it is loaded, before any request; what fails there does not fail the load."""
    prepared = threading.Event()

    class Prepared(Automata):
        @hookimpl
        def register_constraints(self, tokenizer: Any, vocab_size: int) -> Any:
            def prepare() -> None:
                prepared.set()
                raise RuntimeError("not now")

            return {"prepared": Mock(prepare=prepare), **super().register_constraints(tokenizer, vocab_size)}

    extension = Prepared()
    load_extensions().register(extension, name="the extension of the test")
    try:
        with LLM(str(tiny_llava), dtype="float32", max_model_len=64, num_kv_blocks=8) as llm:
            assert prepared.wait(600)
            assert llm.generate("yes", SamplingParams(max_tokens=2), use_tqdm=False)[0].outputs[0].token_ids
    finally:
        load_extensions().unregister(extension)


def test_tokens_that_rules_of_their_place_choose_are_no_constraints_business() -> None:
    """Those at the start of an encoder-decoder's output: the constraint knows what follows, also made again."""
    params, opening = SamplingParams(constraint=automaton(start=3)), {"opening": (([8], [9, 10]), ())}
    outputs: list[int] = []
    sequence = NewSequence("r", [1, 2], outputs, params, (), frozenset({EOS}), part=opening)
    following = SamplingState(sequence, VOCAB, 0, KINDS)
    for chosen, token in (([8], 8), ([9, 10], 10)):
        assert tokens_of(following.allowed_tokens()) == chosen
        outputs.append(token)
    for token in (3, 40, 77):
        for one in (following, SamplingState(sequence, VOCAB, 0, KINDS)):
            assert tokens_of(one.allowed_tokens()) == allowed(outputs[2:], VOCAB, start=3)
        outputs.append(token)
    assert following.failure is None


def test_a_stop_token_beyond_the_vocabulary_is_no_constraints_business() -> None:
    """It can never be sampled; the constraint is told of those that can."""
    params = SamplingParams(constraint=automaton(0))
    sequence = NewSequence("r", [1, 2], [], params, (), frozenset({EOS, VOCAB + 500}))
    ending = SamplingState(sequence, VOCAB, 0, KINDS)
    assert tokens_of(ending.allowed_tokens()) == [EOS]
    assert ending.failure is None
