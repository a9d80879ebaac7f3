"""Promise 35: a request's tokens and log-probabilities are its own, bit for bit, whatever runs beside it.

Each request runs alone, without drafts, cached prefixes, chunks, recorded plans or a full cache; then random batches of
them run with all of these, and with drafts of every length, wrong and right ones. Runs are compared with `==`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from corellm import LLM, SamplingParams, StructuredOutputsParams
from corellm_speculative import model_drafting
from corellm_speculative.costs import StepCosts
from corellm_testing.tiny_text import make_tiny_checkpoint
from extensions.speculative.tests.draft_checkpoints import near, stranger
from extensions.speculative.tests.head_checkpoints import make_head
from tests.fixtures import random_image
from tests.text_models.stateful import MAIN

MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llava": ("corellm_llava", {}, {"preemption_mode": "swap"}),
    "llava in bfloat16": ("corellm_llava", {}, {"dtype": "bfloat16"}),
    "llava in int8": ("corellm_llava", {}, {"quantization": "int8"}),
    "positions of three axes": ("corellm_qwen_vl", {}, {}),
    "windows and spans": ("corellm_gemma3", {}, {}),
    "an encoder-decoder": ("corellm_florence2", {}, {}),
    "states of items": ("corellm_mllama", {}, {}),
    "512 x 8": ("corellm_llava", {"hidden_size": 512, "num_layers": 8}, {"dtype": "bfloat16"}),
}
"""Distribution of a family, arguments of its checkpoint, and of the engine."""
NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 1, "prompt_lookup_max": 4}
SUFFIX = {"method": "suffix", "num_speculative_tokens": 7}
HEADS = {"llava": "eagle3", "llava in bfloat16": "eagle", "positions of three axes": "eagle3", "512 x 8": "eagle3"}
"""Models that are drafted by a head, too."""
HAVE_STATES = ("an encoder-decoder", "states of items")
"""Models that cannot be draft models: others draft for them."""
WORDS = ("one two three one two", "red green blue red green blue red", "what is this", "again and again and again and")
FORMS = (
    StructuredOutputsParams(choice=["one two three four five", "one two six"]),
    StructuredOutputsParams(regex="(ab|ba){2,9}c"),
)


class Asked(NamedTuple):
    """A request."""

    text: str
    image: int | None
    params: SamplingParams

    def message(self) -> list[dict[str, Any]]:
        """Return its conversation."""
        text: list[dict[str, Any]] = [{"type": "text", "text": self.text}]
        items = [] if self.image is None else [{"type": "image", "image": random_image(40, 30, self.image)}]
        return [{"role": "user", "content": [*items, *text]}]


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.3, 1.0]),
    seed=st.integers(0, 5),
    top_k=st.sampled_from([0, 5]),
    top_p=st.sampled_from([1.0, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.2]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.4]),
    logprobs=st.sampled_from([None, 0, 2]),
    n=st.sampled_from([1, 1, 1, 2]),
    stop=st.sampled_from([None, None, ["e", "th"]]),
    stop_token_ids=st.sampled_from([None, None, [*range(0, 200, 11)]]),
    bad_words=st.sampled_from([None, None, ["one", "green"]]),
    structured_outputs=st.sampled_from([None, None, None, *FORMS]),
    min_tokens=st.sampled_from([0, 5]),
    max_tokens=st.sampled_from([40, 17, 5]),
    ignore_eos=st.sampled_from([True, False]),
)
ASKED = st.builds(Asked, st.sampled_from(WORDS), st.sampled_from([None, None, 1, 2]), PARAMS)


IN_SHORT = ("llava", "windows and spans", "an encoder-decoder")


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in IN_SHORT else pytest.mark.full) for name in MODELS],
)
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[LLM]]:
    """A plain engine, and three or four that draft, with few blocks and a small budget."""
    name, sizes, given = MODELS[request.param]
    path: Path = tmp_path_factory.mktemp("model")
    import_module(f"{name}.tiny").make_tiny_checkpoint(path, **sizes)
    make_draft = stranger if request.param in HAVE_STATES else near
    of_a_model = {"model": str(make_draft(path, path.parent / f"{path.name}-draft")), "num_speculative_tokens": 4}
    options = {"dtype": "float32", "max_model_len": 200, "generation_config": "none", **given}
    crowded = {"num_kv_blocks": 16, "max_num_seqs": 5, "max_num_batched_tokens": 70}
    with ExitStack() as stack:
        plain = {"num_kv_blocks": 100, "enforce_eager": True, "enable_prefix_caching": False}
        drafting: list[dict[str, Any]] = [NGRAM, of_a_model]
        if (method := HEADS.get(request.param)) is not None:
            head = make_head(path.parent / f"{path.name}-head", path, method)
            drafting.append({"method": method, "model": str(head), "num_speculative_tokens": 3})
        yield [
            stack.enter_context(LLM(str(path), **{**options, **more}))
            for more in (
                plain,
                *({**crowded, "speculative_config": config} for config in drafting),
                {**crowded, "speculative_config": SUFFIX, "max_num_batched_tokens": 200},
            )
        ]


def told(llm: LLM, batch: list[Asked]) -> list[Any]:
    """Return what must not differ of each: on a GPU, which rounds sums by the size of a batch, no log-probabilities.

    A form or a bad word may leave no token: that is a result, too.
    """
    params = [one.params for one in batch]
    outputs = llm.chat([one.message() for one in batch], params, use_tqdm=False, on_error="return")
    rounded = torch.cuda.is_available()
    return [
        (
            str(output.error),
            [(c.text, c.token_ids, c.finish_reason, c.stop_reason) for c in output.outputs],
            None if rounded else [(c.logprobs, c.cumulative_logprob) for c in output.outputs],
        )
        for output in outputs
    ]


@pytest.mark.parametrize("num_batches", [2, pytest.param(125, marks=pytest.mark.full)])
def test_a_requests_results_are_its_own(engines: list[LLM], num_batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are made whether they pay or not, so wrong ones are many."""
    monkeypatch.setattr(StepCosts, "least_chance", lambda self, num_sequences: 0.0)
    monkeypatch.setattr(model_drafting, "plan_depths", lambda acceptances, most, steps, drafts: most)
    plain, *drafting = engines

    @settings(max_examples=num_batches, phases=[Phase.generate], derandomize=num_batches < 100)
    @given(st.lists(ASKED, min_size=2, max_size=7))
    def check(batch: list[Asked]) -> None:
        wanted = [told(plain, [one])[0] for one in batch]
        for llm in (*drafting, drafting[-1]):  # which then knows the outputs
            assert told(llm, batch) == wanted
            llm.engine.scheduler.blocks.check_integrity()

    check()
    counts = [llm.engine.scheduler.get_stats() for llm in drafting]
    for one in counts:
        assert one.num_draft_tokens > 20
    right = sum(sum(one.accepted_per_position) for one in counts)
    assert sum(one.num_draft_tokens for one in counts) > right > 20


def test_a_model_with_recurrent_states_takes_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of prompt lookup, in outputs that repeat a few tokens: the same tokens; some drafts are right and some wrong."""
    monkeypatch.setattr(StepCosts, "least_chance", lambda *_: 0.0)
    architecture, config = next(iter(MAIN.items()))
    path = str(make_tiny_checkpoint(tmp_path, architecture=architecture, **config))
    prompts = [{"prompt_token_ids": [5, 6, 7, 8, number] * 4} for number in range(9, 13)]
    params = SamplingParams(temperature=0, max_tokens=40, allowed_token_ids=[5, 6, 7])
    found = []
    for speculative_config in (None, NGRAM):
        with LLM(path, dtype="float32", num_kv_blocks=64, speculative_config=speculative_config) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            found.append([output.outputs[0].token_ids for output in outputs])
            counts = llm.engine.scheduler.get_stats()
    assert found[0] == found[1]
    assert len({*map(tuple, found[0])}) > 1
    assert 0 < sum(counts.accepted_per_position) < counts.num_draft_tokens
