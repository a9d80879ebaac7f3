"""When a draft model drafts, how far, and what it reads: by what was right and what steps cost. No model runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from corellm import SamplingParams
from corellm.multimodal.inputs import PlaceholderRange
from corellm.sampling.sampling_state import SamplingState
from corellm.scheduling.batch import NewSequence, ScheduledBatch, SequenceChunk
from corellm.worker.sequence_state import SequenceState
from corellm_speculative.acceptance import Acceptance
from corellm_speculative.costs import StepCosts
from corellm_speculative.depths import plan_depths
from corellm_speculative.draft_sequence import DraftSequence
from corellm_speculative.model_drafting import ModelDrafting
from corellm_speculative.settings import DraftSettings

SETTINGS = {"model": "draft", "num_speculative_tokens": 4}


class Counting:
    """A draft model that says the number after each token; a forward pass takes `base` seconds, and `row` for each."""

    num_ids, max_len, num_tokens, block_bytes = 100_000, 4096, 64, 8

    def __init__(self, engine: Engine, base: float, row: float) -> None:
        self._engine, self._base, self._row = engine, base, row
        self.num_read = 0
        self.cache: dict[tuple[str, int], int] = {}
        """By request and position: the token that was read there last."""

    def extend(self, block_table: list[int], num_tokens: int) -> bool:
        return True

    def release(self, request_id: str, block_table: list[int]) -> None:
        pass

    def resume(self, request_id: str, num_computed: int) -> int:
        return num_computed

    def next_tokens(self, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]) -> list[int]:
        num_tokens = sum(chunk.num_tokens for chunk in chunks)
        self.num_read += num_tokens
        self._engine.now += self._base + self._row * num_tokens
        for chunk in chunks:
            self.cache.update({(chunk.request_id, chunk.start + i): t for i, t in enumerate(chunk.token_ids)})
        return [chunk.token_ids[-1] + 1 for chunk in chunks if chunk.samples]


class Engine:
    """Runs sequences through a part: each step takes a second, and `row` more for each row."""

    def __init__(self, *, base: float = 0.1, draft_row: float = 0.01, row: float = 0.05) -> None:
        self.now, self._row = 0.0, row
        self.model = Counting(self, base, draft_row)
        self.part = ModelDrafting(DraftSettings.of(SETTINGS), self.model, clock=lambda: self.now)  # type: ignore[arg-type]

    def run(self, *texts: Sequence[int], prompt: Sequence[int] = (1, 2, 3)) -> list[int]:
        """Return the number of drafts in each step of sequences that say these texts, all at once."""
        names = [f"{id(text)}" for text in texts]
        outputs: dict[str, list[int]] = {name: [] for name in names}
        new = [
            NewSequence(name, prompt, outputs[name], SamplingParams(temperature=0, max_tokens=10_000), ())
            for name in names
        ]
        states = [SequenceState(one, SamplingState(one, 100_000, 0)) for one in new]
        chunks = [SequenceChunk(name, 0, len(prompt), prompt, [], True) for name in names]
        batch, drafts, counts = ScheduledBatch(new=new, chunks=chunks), {}, []
        left = {name: list(text) for name, text in zip(names, texts, strict=True)}
        while left:
            self.part.begin(batch)
            self.part.lay_out(None, batch.chunks, [states[names.index(c.request_id)] for c in batch.chunks])  # type: ignore[arg-type]
            self.now += 1 + self._row * batch.num_tokens
            sampled = {name: self._take(left[name], drafts.get(name, [])) for name in left}
            drafts = dict(self.part.propose(sampled))
            counts.append(sum(map(len, drafts.values())))
            for name, tokens in sampled.items():
                outputs[name] += tokens
            left = {name: text for name, text in left.items() if text}
            batch = ScheduledBatch(
                chunks=[
                    SequenceChunk(name, 0, 1 + len(d), [0, *d], [], True, num_drafts=len(d))
                    for name in left
                    for d in [drafts.get(name, [])]
                ]
            )
        self.part.begin(ScheduledBatch(released=names))
        return counts

    @staticmethod
    def _take(left: list[int], drafts: list[int]) -> list[int]:
        right = next((i for i, (a, b) in enumerate(zip(drafts, left, strict=False)) if a != b), len(drafts))
        taken = left[: right + 1]
        del left[: right + 1]
        return taken


RIGHT = [*range(10, 410)]
WRONG = [*range(800, 0, -2)]


def test_a_text_that_the_model_knows_is_drafted_to_the_full() -> None:
    """And takes a fraction of the steps; nothing of it is read twice."""
    engine = Engine()
    counts = engine.run(RIGHT)
    assert len(counts) < 400 / 5 + 5
    assert counts[5:-2] == [4] * len(counts[5:-2])
    assert engine.model.num_read <= len(RIGHT) + 10


def test_drafting_stops_where_it_does_not_pay_and_comes_back() -> None:
    """Until then a draft now and then is all, in time and in tokens that are read."""
    engine = Engine()
    counts = engine.run([*WRONG, *RIGHT, *RIGHT])
    assert sum(counts[20:400]) < 12
    assert sum(counts[400:]) > 300
    read = Engine()
    read.run(WRONG)
    assert read.model.num_read < len(WRONG) / 2
    assert read.now / (1.05 * len(WRONG)) < 1.03


def test_every_sixteenth_request_shows_what_has_changed() -> None:
    """Where drafts did not pay, most requests have none; the others bring them back."""
    engine = Engine()
    for _ in range(6):
        engine.run(WRONG[:60])
    read = engine.model.num_read
    engine.run(WRONG[:60])
    assert engine.model.num_read == read
    for _ in range(16):
        last = engine.run(RIGHT)
    assert sum(last) > 200


def test_one_step_of_the_draft_model_serves_all_sequences() -> None:
    """So that drafts pay for many where they do not for one."""
    dear = {"base": 1.0, "draft_row": 0.0, "row": 0.0}
    assert sum(Engine(**dear).run(RIGHT)[10:]) < 12
    assert sum(Engine(**{**dear, "base": 0.3}).run(RIGHT, [*RIGHT[:-1]], [*RIGHT[:-2]])[10:]) > 500


def test_long_prompts_are_read_in_chunks() -> None:
    """And are drafted once they are read."""
    engine = Engine()
    counts = engine.run(RIGHT, prompt=[*range(200, 400)])
    assert counts[:3] == [0, 0, 0]
    assert sum(counts[3:6]) > 0


def test_wrong_drafts_are_written_over() -> None:
    """Each place of the cache has the token of the text, whatever was drafted there."""
    engine = Engine()
    text = [token + 100 * (i // 7) for i, token in enumerate(RIGHT[:200])]
    engine.run(text)
    whole = [1, 2, 3, *text]
    read = {position: token for (_, position), token in engine.model.cache.items()}
    computed = [read[i] for i in range(max(read))]
    assert computed[: len(whole) - 10] == whole[: len(whole) - 10]


def sequence_of(prompt: list[int], num_ids: int = 1000, features: Sequence[Any] = (), **params: Any) -> DraftSequence:
    """Return a sequence that has said nothing."""
    given = NewSequence("a", prompt, [], SamplingParams(**params), features, stop_token_ids=frozenset([9]))
    sequence = DraftSequence(given, num_ids, Acceptance(), is_trial=True)
    sequence.sample_as(SamplingState(given, 1000, 0))
    return sequence


class Item:
    """An item, of which a place is all."""

    def __init__(self, offset: int, length: int) -> None:
        self.placeholder = PlaceholderRange(offset, length)


def test_the_draft_model_sees_neither_items_nor_tokens_that_it_does_not_have() -> None:
    """Nor does it count them."""
    sequence = sequence_of([1, 2, 50, 50, 50, 3, 60, 4, 777], num_ids=100, features=[Item(6, 1), Item(2, 3)])
    assert sequence.text == [1, 2, 3, 4]
    sequence.add([5, 777, 6])
    assert sequence.text == [1, 2, 3, 4, 5, 6]
    unseen = sequence_of([50, 777], num_ids=50)
    unseen.add([777])
    assert (unseen.text, unseen.num_computed) == ([], 0)


@pytest.mark.parametrize(
    ("params", "sampled", "room"),
    [
        ({"max_tokens": 10}, [5], 8),
        ({"max_tokens": 2}, [5], 0),
        ({"max_tokens": 10}, [9], 0),
        ({"max_tokens": 10, "min_tokens": 2}, [9], 8),
        ({"max_tokens": None}, [5], 1 << 30),
    ],
)
def test_an_output_that_ends_is_not_drafted(params: dict[str, Any], sampled: list[int], room: int) -> None:
    """By its length or a token that stops it."""
    sequence = sequence_of([1], **params)
    sequence.add(sampled)
    assert sequence.room == room


def costs_of(base: float, row: float) -> StepCosts:
    """Return costs that were measured."""
    costs = StepCosts()
    for step in range(200):
        costs.note(1 + step % 8, base + row * (1 + step % 8))
    return costs


def acceptance_of(share: float) -> Acceptance:
    """Return what was measured of drafts of which a share is right."""
    acceptance = Acceptance(memory=256)
    for step in range(1000):
        for length in (1, 2, 4, 8, 16):
            acceptance.note(length, step % 20 < 20 * share)
    return acceptance


@pytest.mark.parametrize("share", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("cost", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("num", [1, 8])
def test_depths_are_near_the_best(share: float, cost: float, num: int) -> None:
    """No other number of drafts would say a tenth more tokens per second."""

    def speed(depth: int) -> float:
        gained = num * sum(share**i for i in range(depth + 1))
        return gained / (1 + 0.05 * num * (1 + depth) + depth * (cost + 0.01 * num))

    found = plan_depths([acceptance_of(share)] * num, [16] * num, costs_of(1, 0.05), costs_of(cost, 0.01))
    assert len(set(found)) == 1
    assert speed(found[0]) > max(map(speed, range(17))) * 0.9


def test_depths_differ_by_sequence_and_keep_to_their_room() -> None:
    """Each is drafted as long as its own drafts pay."""
    acceptances = [acceptance_of(share) for share in (0.0, 0.5, 0.95, 0.95)]
    found = plan_depths(acceptances, [16, 16, 16, 2], costs_of(1, 0.05), costs_of(0.05, 0.01))
    assert found[0] == 0 < found[1] < found[2]
    assert found[3] == 2
    assert plan_depths(acceptances, [3, 3, 3, 0], StepCosts(), StepCosts()) == [3, 3, 3, 0]


def test_a_draft_model_whose_rows_cost_nothing_costs_its_steps() -> None:
    """One that is as slow as the model is not asked, however right it is."""
    assert plan_depths([acceptance_of(1.0)], [4], costs_of(1, 0.05), costs_of(1, 0.0)) == [0]
    assert plan_depths([acceptance_of(1.0)] * 4, [4] * 4, costs_of(1, 0.05), costs_of(0.5, 0.0)) == [4] * 4
