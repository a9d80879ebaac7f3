"""Promise 35: a request's tokens and log-probabilities are its own, bit for bit, whatever runs beside it.

Each request runs alone on one thread, in a whole prompt, without drafts, cached prefixes or recorded plans; then random
batches run under random settings with all of these, beside neighbours with other adapters and forms, preempted, on one
to three threads, and with drafts of every length, wrong and right ones. Runs are compared with `==`, on each set of
kernels that the processor runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from corellm import LLM
from corellm_speculative.costs import StepCosts
from tests.same_results.asked import Asked, batches, told
from tests.same_results.engines import DTYPES, Engines, threads


@pytest.mark.parametrize("num_engines", [2, pytest.param(3, marks=pytest.mark.full)])
def test_a_requests_results_are_its_own(
    engines: Engines, num_engines: int, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """Drafts are made whether they pay or not, so wrong ones are many."""
    monkeypatch.setattr(StepCosts, "least_chance", lambda self, num_sequences: 0.0)
    counts: Counter[str] = Counter()
    outputs = set()

    @settings(max_examples=num_engines, phases=[Phase.generate], derandomize=num_engines == 2)
    @given(
        st.sampled_from([*DTYPES]), st.sampled_from(engines.loras), engines.settings(),
        st.lists(batches(engines.model), min_size=2, max_size=2), st.integers(1, 3),
    )  # fmt: skip
    def check(dtype: str, lora: bool, chosen: Mapping[str, Any], runs: Sequence[Sequence[Asked]], number: int) -> None:
        plain, adapters = engines.plain(dtype, lora), engines.adapters if lora else ()
        with LLM(str(engines.path), **engines.options(dtype, lora, chosen)) as llm:
            for batch in runs:
                with threads(1):
                    wanted = [told(plain, [one], adapters)[0] for one in batch]
                for _ in range(2):  # prefixes are cached then, and outputs known
                    with threads(number):
                        results = told(llm, batch, adapters)
                    for asked, got, want in zip(batch, results, wanted, strict=True):
                        assert got == want, f"{dtype}, LoRA {lora}, {chosen}, {number} threads: {asked}"
                    llm.engine.scheduler.blocks.check_integrity()
                    counts.update(batches=1, requests=len(batch))
                outputs.update(str(want) for want in wanted)
            stats = llm.engine.scheduler.get_stats()
            right = sum(stats.accepted_per_position)
            counts.update(preemptions=stats.num_preemptions, drafts=stats.num_draft_tokens, right=right)

    check()
    record_property("counts", dict(counts))
    assert len(outputs) > num_engines, "requests that differ have other results"
