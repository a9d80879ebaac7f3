"""A worker without tensors that notices everything: the oracle of the scheduling tests.

Its "KV" of a token is one number that depends on the whole history up to that token: all tokens before it and the
embeddings that stood in for some of them. It is computed like attention would, from the slot before (found through the
block table) and the encoder output the worker holds; then every slot of the sequence is compared with the history
computed from scratch. A block shared, evicted, swapped or registered wrongly, an encoder output missing or a chunk
skipped shows at once. The KV of a token in a span that sees both ways depends on the whole span. The next token is a
function of the last slot, so outputs show it too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from random import Random
from typing import Any, cast
from zlib import crc32

from corellm.errors import EncoderError, RequestFailedError
from corellm.multimodal.inputs import MultiModalFeature, PlaceholderRange
from corellm.sampling_params import SamplingParams
from corellm.scheduling.batch import UNKNOWN, NewSequence, ScheduledBatch, SequenceChunk, StepResult
from corellm.scheduling.request import Request
from corellm.scheduling.request_part import PLAIN
from corellm.scheduling.spans import Spans

VOCABULARY = 40
EOS = 0
GARBAGE = -1


def make_feature(
    identifier: str, offset: int, length: int, is_embed: Sequence[bool] | None = None, item: int = 0
) -> MultiModalFeature:
    """An image item without tensors."""
    placeholder = PlaceholderRange(offset, length, None if is_embed is None else tuple(is_embed))
    return MultiModalFeature("image", item, identifier, placeholder, data=cast(Any, None))


def make_request(
    request_id: str,
    prompt: Sequence[int],
    features: Sequence[MultiModalFeature] = (),
    *,
    priority: int = 0,
    cache_salt: str | None = None,
    arrival_time: float = 0.0,
    spans: Sequence[tuple[int, int]] = (),
    **sampling: Any,
) -> Request:
    """A request for the fake vocabulary, whose end-of-sequence token is `EOS`."""
    return Request(
        request_id,
        list(prompt),
        SamplingParams(**sampling),
        features,
        frozenset({EOS}),
        priority=priority,
        cache_salt=cache_salt,
        arrival_time=arrival_time,
        part=Spans(spans) if spans else PLAIN,
    )


def spans_of(request: Request) -> Sequence[tuple[int, int]]:
    """The spans of a request's prompt."""
    return request.part.spans if isinstance(request.part, Spans) else ()


def embedding_at(features: Sequence[MultiModalFeature], position: int) -> tuple[str, int] | None:
    """The embedding (item, index) in place of the token at a position; None where the token itself counts."""
    for feature in features:
        placeholder = feature.placeholder
        index = placeholder.embeds_before(position)
        if placeholder.offset <= position < placeholder.end and placeholder.embeds_before(position + 1) > index:
            return feature.identifier, index
    return None


def taken_embeddings(features: Sequence[MultiModalFeature], chunk: SequenceChunk) -> dict[int, tuple[str, int]]:
    """The embedding (item, index) that each of a chunk's tokens takes, as the chunk says it."""
    taken: dict[int, tuple[str, int]] = {}
    for item in chunk.items:
        tokens = range(chunk.num_tokens)[item.tokens]
        takers = (
            tokens if item.is_embed is None else [t for t, takes in zip(tokens, item.is_embed, strict=True) if takes]
        )
        rows = range(features[item.index].placeholder.num_embeds)[item.embeds]
        taken |= {t: (features[item.index].identifier, row) for t, row in zip(takers, rows, strict=True)}
    return taken


def span_around(spans: Sequence[tuple[int, int]], position: int) -> tuple[int, int] | None:
    """The span that a position lies in."""
    return next((span for span in spans if span[0] <= position < span[1]), None)


def next_kv(before: int | None, token: int, embedding: tuple[str, int] | None, ahead: object = None) -> int:
    """The KV of a token after the KV of the one before it; `ahead` is what else it sees, in its span."""
    seen = [before, token if embedding is None else embedding, *([] if ahead is None else [ahead])]
    return crc32(repr(tuple(seen)).encode())  # `hash` differs by process


def kv_at(
    before: int | None,
    tokens: Sequence[int],
    position: int,
    features: Sequence[MultiModalFeature],
    spans: Sequence[tuple[int, int]],
) -> int:
    """The KV of a sequence's token, after the KV of the one before it."""
    span = span_around(spans, position)
    ahead = None if span is None else [(tokens[i], embedding_at(features, i)) for i in range(*span)]
    return next_kv(before, tokens[position], embedding_at(features, position), ahead)


def token_after(kv: int) -> int:
    """What the fake model samples after a token with this KV."""
    return kv % VOCABULARY


def expected_output(request: Request, max_total_tokens: int) -> list[int]:
    """The completion of a request that runs alone, computed without an engine."""
    params = request.sampling_params
    limit = max_total_tokens - len(request.prompt_token_ids)
    if params.max_tokens is not None:
        limit = min(limit, params.max_tokens)
    kv: int | None = None
    for position in range(len(request.prompt_token_ids)):
        kv = kv_at(kv, request.prompt_token_ids, position, request.features, spans_of(request))
    output: list[int] = []
    stops = frozenset(params.stop_token_ids or ()) | (frozenset() if params.ignore_eos else {EOS})
    while len(output) < limit:
        assert kv is not None
        output.append(token_after(kv))
        if output[-1] in stops and len(output) >= params.min_tokens:
            break
        kv = next_kv(kv, output[-1], None)
    return output


class FakeWorker:
    """Executes batches on fake KV; raises `AssertionError` where a real worker would compute something wrong.

    With a `window` there is a layer that sees so many tokens, in which blocks have places of their own. With `drafts`
    it guesses up to four tokens after those that it samples, most of them right.
    """

    def __init__(
        self,
        block_size: int,
        encoder_capacity: int,
        encoder_step: int,
        window: int | None = None,
        *,
        drafts: bool = False,
    ) -> None:
        self.window = window
        self._drafts = drafts
        self.num_right_drafts = 0
        self._places: dict[int, int] = {}
        self._placed: dict[int, int] = {}  # slot of a place -> KV
        self._placed_on_host: dict[int, list[int | None]] = {}
        self.block_size = block_size
        self.encoder_capacity, self.encoder_step = encoder_capacity, encoder_step
        self.sequences: dict[str, NewSequence] = {}
        self.parked: set[str] = set()
        """Sequences whose state is in host memory."""
        self.encoder_outputs: dict[str, int] = {}  # identifier -> embeddings
        self.num_encoder_runs = 0
        self._kv: dict[int, int] = {}  # slot -> KV
        self._host: dict[int, list[int | None]] = {}
        self._histories: dict[str, list[int]] = {}

    def execute(
        self, batch: ScheduledBatch, fails: Callable[[str], bool] = lambda _: False, broken: Collection[str] = ()
    ) -> StepResult:
        """Run a step.

        Args:
            batch: what to run.
            fails: whether a request fails in this step; garbage is then left in the slots it should have computed.
            broken: identifiers of items whose encoder raises.
        """
        self._copy_blocks(batch)
        self._update_state(batch)
        self._encode(batch, broken)
        result = StepResult()
        for chunk in batch.chunks:
            lost = self._missing_items(chunk) & set(broken)
            if lost or fails(chunk.request_id):
                for position in range(chunk.start, chunk.start + chunk.num_tokens):
                    self._kv[self._slot(chunk, position)] = GARBAGE
                    if (slot := self._placed_slot(chunk, position)) is not None:
                        self._placed[slot] = GARBAGE
                error = EncoderError(f"no embeddings of {lost}") if lost else RequestFailedError("injected")
                result.failed[chunk.request_id] = error
            else:
                self._compute(chunk, result)
        return result

    def forget(self) -> None:
        """Drop every sequence and encoder output; what is in the blocks stays there."""
        self._places.clear()
        self.sequences.clear()
        self.parked.clear()
        self._histories.clear()
        self.encoder_outputs.clear()

    def execute_ahead(self, batch: ScheduledBatch, before: StepResult) -> StepResult:
        """Run a step that was scheduled before the results of the last one, `before`, were taken in."""
        others = {field.name: getattr(batch, field.name) for field in fields(ScheduledBatch)}
        del others["chunks"], others["messages"]
        assert not any(others.values()), f"more than decodes is scheduled ahead: {others}"
        result = StepResult()
        self._places.update(batch.messages.get("windows", ()))
        for chunk in batch.chunks:
            assert list(chunk.token_ids) == [UNKNOWN]
            if chunk.request_id in before.sampled:
                self._compute(chunk, result, before.sampled[chunk.request_id])
            else:
                self._kv[self._slot(chunk, chunk.start)] = GARBAGE
        return result

    def _copy_blocks(self, batch: ScheduledBatch) -> None:
        for device, host in batch.swap_out:
            self._host[host] = [self._kv.get(slot) for slot in self._slots(device)]
            self._placed_on_host[host] = [self._placed.get(slot) for slot in self._slots(self._places.get(device, 0))]
        self._places.update(batch.messages.get("windows", ()))
        for host, device in batch.swap_in:
            for slot, kv in zip(self._slots(device), self._host[host], strict=True):
                self._kv[slot] = GARBAGE if kv is None else kv
            place = self._places.get(device, 0)
            for slot, kv in zip(self._slots(place) if place else (), self._placed_on_host[host], strict=False):
                self._placed[slot] = GARBAGE if kv is None else kv

    def _update_state(self, batch: ScheduledBatch) -> None:
        assert set(batch.swapped) <= set(batch.released)
        for request_id in batch.released:
            if request_id in self.parked:
                self.parked.remove(request_id)
                continue
            del self.sequences[request_id]
            del self._histories[request_id]
            if request_id in batch.swapped:
                self.parked.add(request_id)
        for sequence in batch.new:
            assert sequence.request_id not in self.sequences, f"{sequence.request_id} is not new"
            self.sequences[sequence.request_id] = sequence
            self.parked.discard(sequence.request_id)
            self._histories[sequence.request_id] = []

    def _encode(self, batch: ScheduledBatch, broken: Collection[str]) -> None:
        for identifier in batch.freed_items:
            self.encoder_outputs.pop(identifier, None)  # may never have been produced
        encoded = 0
        for request_id, index in batch.encode:
            feature = self.sequences[request_id].features[index]
            assert feature.identifier not in self.encoder_outputs, f"{feature.identifier} is encoded twice"
            encoded += feature.placeholder.num_embeds
            if feature.identifier not in broken:
                self.encoder_outputs[feature.identifier] = feature.placeholder.num_embeds
                self.num_encoder_runs += 1
        assert encoded <= self.encoder_step, "encoder budget exceeded"
        assert sum(self.encoder_outputs.values()) <= self.encoder_capacity, "encoder cache overflows"

    def _missing_items(self, chunk: SequenceChunk) -> set[str]:
        features = self.sequences[chunk.request_id].features
        positions = range(chunk.start, chunk.start + chunk.num_tokens)
        found = (embedding_at(features, position) for position in positions)
        return {embedding[0] for embedding in found if embedding} - self.encoder_outputs.keys()

    def _compute(self, chunk: SequenceChunk, result: StepResult, sampled: Sequence[int] = ()) -> None:
        sequence = self.sequences[chunk.request_id]
        drafts = list(chunk.token_ids)[chunk.num_tokens - chunk.num_drafts :]
        tokens = [*sequence.prompt_token_ids, *sequence.output_token_ids, *sampled, *drafts]
        num_known, stop = len(tokens) - len(drafts), chunk.start + chunk.num_tokens
        assert chunk.num_tokens > 0
        if not sampled:
            assert list(chunk.token_ids) == tokens[chunk.start : stop], "the chunk has other tokens than the sequence"
        assert chunk.samples == (stop == len(tokens))
        assert 0 not in chunk.block_table, "the null block is in a block table"
        assert not self._missing_items(chunk), f"no encoder output of {self._missing_items(chunk)}"
        taken = taken_embeddings(sequence.features, chunk)
        for position in range(chunk.start, stop):
            before = self._kv[self._slot(chunk, position - 1)] if position else None
            span, ahead = span_around(sequence.part.get("spans", ()), position), None
            if span is not None:
                assert span[1] <= stop, f"{chunk.request_id}: a chunk that ends at {stop} cuts the span {span}"
                ahead = [(tokens[i], embedding_at(sequence.features, i)) for i in range(*span)]
            embedding = taken.get(position - chunk.start)
            self._kv[self._slot(chunk, position)] = next_kv(before, tokens[position], embedding, ahead)
        history = self._history(sequence, tokens[:num_known])
        for position in range(num_known, stop):
            history = [*history, next_kv(history[-1], tokens[position], None)]
        for position in range(stop):
            found = self._kv.get(self._slot(chunk, position))
            assert found == history[position], f"{chunk.request_id} reads another request's KV at position {position}"
        if self.window is not None:
            self._check_window(chunk, history, sequence.part.get("spans", ()))
        if chunk.samples:
            sampled = [token_after(kv) for kv in history[num_known - 1 : stop]]
            num_right = next((i for i, draft in enumerate(drafts) if draft != sampled[i]), len(drafts))
            self.num_right_drafts += num_right
            result.sampled[chunk.request_id] = sampled[: num_right + 1]
            if self._drafts:
                kv = history[num_known - 1 + num_right]
                result.drafts[chunk.request_id] = self._guesses(kv, sampled[num_right])

    def _guesses(self, kv: int, token: int) -> list[int]:
        """Guess what comes after a token that comes after a KV: the same each time that a load is run."""
        random, guesses = Random(kv), list[int]()
        for _ in range(random.randint(0, 4)):
            kv = next_kv(kv, token, None)
            token = token_after(kv) if random.random() < 0.8 else random.randrange(VOCABULARY)
            guesses.append(token)
        return guesses

    def _check_window(self, chunk: SequenceChunk, history: Sequence[int], spans: Sequence[tuple[int, int]]) -> None:
        """Write a chunk's KV into places, then look for that of each of its tokens' windows."""
        assert self.window is not None
        stop = chunk.start + chunk.num_tokens
        for position in range(chunk.start, stop):
            slot = self._placed_slot(chunk, position)
            assert slot is not None, f"{chunk.request_id}: position {position} has no place to write to"
            self._placed[slot] = history[position]
        for position in range(chunk.start, stop):
            span = span_around(spans, position)
            for key in range(max(0, position - self.window + 1), position + 1 if span is None else span[1]):
                slot = self._placed_slot(chunk, key)
                found = None if slot is None else self._placed.get(slot)
                assert found == history[key], f"{chunk.request_id}: {position} does not find {key} in its window"

    def _placed_slot(self, chunk: SequenceChunk, position: int) -> int | None:
        place = self._places.get(chunk.block_table[position // self.block_size], 0)
        return place * self.block_size + position % self.block_size if place else None

    def _history(self, sequence: NewSequence, tokens: Sequence[int]) -> list[int]:
        history = self._histories[sequence.request_id]
        for position in range(len(history), len(tokens)):
            before = history[-1] if history else None
            history.append(kv_at(before, tokens, position, sequence.features, sequence.part.get("spans", ())))
        return history

    def _slot(self, chunk: SequenceChunk, position: int) -> int:
        return chunk.block_table[position // self.block_size] * self.block_size + position % self.block_size

    def _slots(self, block: int) -> range:
        return range(block * self.block_size, (block + 1) * self.block_size)
