"""Spans that see both ways: what an adapter may return, how long they get, which chunks they allow."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pluggy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corellm import hookspecs
from corellm.errors import ContractError, ProcessingError, PromptTooLongError
from corellm.frontend.stated_parts import longest_whole, spans_of
from corellm.hookspecs import hookimpl
from corellm.multimodal import embedded_spans
from corellm.plugin.hook_callers import HookCallers, hook_callers
from corellm.scheduling.spans import without_cutting
from tests.scheduling.fake_worker import make_feature, make_request
from tests.scheduling.simulation import Setup, Simulation


def hooks_of(spans: Any = None) -> HookCallers:
    """The hooks of an adapter that returns `spans`, or calls it; without one, of an adapter that has no such hook."""
    manager = pluggy.PluginManager(hookspecs.PROJECT_NAME)
    manager.add_hookspecs(hookspecs)

    class Adapter:
        @hookimpl
        def get_bidirectional_spans(self, token_ids: Any, mm_features: Any) -> Any:
            return spans(token_ids, mm_features) if callable(spans) else spans

    manager.register(SimpleNamespace() if spans is None else Adapter())
    return hook_callers(manager)


def test_without_the_hook_there_are_none() -> None:
    assert spans_of(hooks_of(), [1, 2, 3], []) == ()
    assert longest_whole(hooks_of(), [[1, 2]], [make_feature("i", 0, 2)], 9) == 0


def test_spans_are_sorted_and_single_tokens_left_out() -> None:
    assert spans_of(hooks_of([(5, 7), (3, 4), (0, 2)]), [0] * 7, []) == ((0, 2), (5, 7))


@pytest.mark.parametrize("wrong", [[(0, 3), (2, 5)], [(4, 8)], [(-1, 2)], [(3, 2)]])
def test_spans_that_overlap_or_leave_the_prompt_are_the_adapters_fault(wrong: list[tuple[int, int]]) -> None:
    with pytest.raises(ContractError, match=r"get_bidirectional_spans .* 7 tokens"):
        spans_of(hooks_of(wrong), [0] * 7, [])


def test_a_hook_that_raises_fails_the_request() -> None:
    def fails(*_: Any) -> Any:
        raise KeyError("image")

    with pytest.raises(ProcessingError, match=r"get_bidirectional_spans .*KeyError"):
        spans_of(hooks_of(fails), [1], [])


@pytest.mark.parametrize(
    ("spans", "longest"),
    [(lambda _, features: embedded_spans(features), 3), (lambda tokens, _: [(0, len(tokens))], 20)],
    ids=["of items", "of the prompt"],
)
def test_the_longest_whole_is_that_of_an_item_or_of_the_longest_prompt(spans: Any, longest: int) -> None:
    features = [make_feature("a", 1, 2), make_feature("b", 0, 3)]
    assert longest_whole(hooks_of(spans), [[9, 1, 1], [1, 1, 1, 9]], features, 20) == longest


def test_embedded_spans() -> None:
    """Rows of tokens with embeddings; two rows that meet are one."""
    features = [
        make_feature("a", 2, 5, [False, True, True, False, True]),
        make_feature("b", 7, 2),
        make_feature("c", 11, 1),
    ]
    assert embedded_spans(features) == [(3, 5), (6, 9), (11, 12)]
    assert embedded_spans([]) == []


@given(
    lengths=st.lists(st.tuples(st.integers(0, 4), st.integers(2, 9)), max_size=5),
    tail=st.integers(0, 5),
    budget=st.integers(1, 30),
)
def test_chunks_reach_the_end_and_cut_no_span(lengths: list[tuple[int, int]], tail: int, budget: int) -> None:
    """From any start, chunk by chunk; only to the end of a span are they longer than the budget."""
    spans, position = list[tuple[int, int]](), 0
    for gap, length in lengths:
        spans.append((position + gap, position + gap + length))
        position += gap + length
    total = position + tail
    for first in range(total):
        start = first
        while start < total:
            wanted = min(budget, total - start)
            count = without_cutting(spans, start, wanted, may_extend=True)
            stop = start + count
            assert count > 0
            assert not any(a < stop < b for a, b in spans)
            assert count <= wanted or any(a <= start and stop == b for a, b in spans)
            assert without_cutting(spans, start, wanted, may_extend=False) == (count if count <= wanted else 0)
            start = stop


def test_a_span_waits_for_a_step_in_which_its_prompt_is_the_first() -> None:
    """Beside another prompt it does not exceed the budget; alone it does, and decodes go on beside it."""
    simulation = Simulation(Setup(max_num_batched_tokens=6, num_blocks=40))
    simulation.add(make_request("text", range(1, 5), max_tokens=5, ignore_eos=True))
    simulation.add(make_request("span", range(11, 23), spans=[(1, 12)], max_tokens=2, ignore_eos=True))
    shapes = [
        [(chunk.request_id, chunk.start, chunk.num_tokens) for chunk in batch.chunks] for batch in simulation.run()
    ]
    assert shapes[0] == [("text", 0, 4), ("span", 0, 1)]
    assert shapes[1] == [("text", 4, 1), ("span", 1, 11)]


def test_items_of_one_span_must_fit_one_step() -> None:
    """They are encoded together: more than the encoder cache holds can never run, and are refused."""
    features = [make_feature(f"image-{i}", 4 * i, 3, item=i) for i in range(3)]
    prompt = [1, 1, 1, 2] * 3
    simulation = Simulation(Setup(encoder_capacity=8))
    apart = make_request("apart", prompt, features, spans=embedded_spans(features), max_tokens=1, ignore_eos=True)
    whole = make_request("whole", prompt, features, spans=[(0, 12)], max_tokens=1)
    simulation.add(apart, whole)
    assert whole.finish_reason == "ignored"
    assert isinstance(whole.error, PromptTooLongError)
    assert "0 to 11 have 9" in str(whole.error)
    assert "holds 8" in str(whole.error)
    simulation.run()
    assert apart.finish_reason == "length"


def test_a_span_longer_than_planned_is_refused() -> None:
    """Memory is planned for the longest span of the largest items; adjacent items may make a longer one."""
    simulation = Simulation(Setup())
    simulation.scheduler.limits = replace(simulation.scheduler.limits, longest_whole=6)
    long = make_request("long", [1] * 12, spans=[(0, 6), (6, 12)], max_tokens=1, ignore_eos=True)
    longer = make_request("longer", [1] * 12, spans=[(2, 9)], max_tokens=1)
    simulation.add(long, longer)
    assert isinstance(longer.error, PromptTooLongError)
    assert "2 to 8" in str(longer.error)
    assert "6 such tokens, not 7" in str(longer.error)
    simulation.run()
    assert long.finish_reason == "length"
