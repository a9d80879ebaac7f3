"""The messages between the engine and the worker: what one step runs, and its result.

Plain data without tensors, so that the scheduler can build it and a process boundary could carry it. Lists that grow
while a request runs (block table, output tokens) are passed by reference: the engine owns and changes them between
steps, the worker only reads them during one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from corellm.errors import CorellmError
from corellm.multimodal.inputs import MultiModalFeature
from corellm.sampling_params import SamplingParams

UNKNOWN = -1
"""In place of a token id that the step in flight is still sampling."""


@dataclass(slots=True)
class NewSequence:
    """A sequence the worker does not hold yet: just admitted, or back after its state was dropped."""

    request_id: str
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    """By reference; grows by one per generated token."""
    sampling_params: SamplingParams
    features: Sequence[MultiModalFeature]
    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that `min_tokens` holds back: end of sequence (unless ignored) and the request's stop tokens."""
    bad_words_ids: Sequence[Sequence[int]] = ()
    prompt_task: Any = None
    """What is made of the prompt, where no token is sampled: known to the worker of that use."""
    part: Mapping[str, Any] = field(default_factory=dict)
    """What features make of the request, by the names by which their parts of the worker look for it."""
    cache_salt: str | None = None
    """Nothing of a sequence may be used for one of another salt."""


@dataclass(frozen=True, slots=True)
class ItemSlice:
    """What a chunk takes of one item: a placeholder may be cut by chunks, and have tokens without an embedding."""

    index: int
    """Index of the item in the sequence's `features`."""
    embeds: slice
    """Which of the item's embeddings."""
    tokens: slice
    """Which of the chunk's tokens lie in the item's placeholder."""
    is_embed: tuple[bool, ...] | None = None
    """Which of those tokens take an embedding; None for all."""


def item_slices(features: Sequence[MultiModalFeature], start: int, stop: int) -> Iterator[ItemSlice]:
    """Yield what the tokens `[start, stop)` take of each item, in the order of placeholders.

    An item that lies there only with tokens that take no embedding is left out.
    """
    first = bisect_right(features, start, key=lambda feature: feature.placeholder.end)
    for index in range(first, len(features)):
        place = features[index].placeholder
        if place.offset >= stop:
            return
        begin, end = max(place.offset, start), min(place.end, stop)
        embeds = slice(place.embeds_before(begin), place.embeds_before(end))
        if embeds.start < embeds.stop:
            is_embed = None if place.is_embed is None else place.is_embed[begin - place.offset : end - place.offset]
            yield ItemSlice(index, embeds, slice(begin - start, end - start), is_embed)


@dataclass(slots=True)
class SequenceChunk:
    """The tokens `[start, start + num_tokens)` of one sequence, to be computed in this step."""

    request_id: str
    start: int
    num_tokens: int
    token_ids: Sequence[int]
    """The `num_tokens` token ids of this chunk; `[UNKNOWN]` in a step that is scheduled ahead."""
    block_table: Sequence[int]
    """By reference: block ids covering at least `start + num_tokens` tokens."""
    samples: bool
    """Whether this chunk has the sequence's last token, so that the next one is sampled."""
    items: Sequence[ItemSlice] = ()
    """What it takes of items, in the order of their placeholders."""
    notes: Sequence[Any] = ()
    """What users of blocks tell the worker's parts."""
    num_drafts: int = 0
    """How many of the last tokens are drafts: the worker keeps those that it samples itself, up to the first other."""

    @property
    def drafts(self) -> Sequence[int]:
        """The last `num_drafts` of `token_ids`."""
        return self.token_ids[self.num_tokens - self.num_drafts :] if self.num_drafts else ()

    def one_by_one(self) -> list[SequenceChunk]:
        """Return a chunk for each token, of those after which all are sampled."""
        return [
            replace(self, start=self.start + i, num_tokens=1, token_ids=[token], num_drafts=0)
            for i, token in enumerate(self.token_ids)
        ]


@dataclass(slots=True)
class ScheduledBatch:
    """Everything one step does, in the order the worker does it."""

    swap_out: list[tuple[int, int]] = field(default_factory=list)
    """`(device block, host block)` pairs to copy to the host before anything is overwritten."""
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    """`(host block, device block)` pairs to copy back, after `swap_out` and what `messages` change."""
    messages: Mapping[str, Any] = field(default_factory=dict)
    """What users of blocks tell the worker's parts, by their names."""
    released: list[str] = field(default_factory=list)
    """Requests that finished or were preempted since the last step: the worker drops what it holds of them."""
    swapped: list[str] = field(default_factory=list)
    """Requests among `released` that come back with what they have computed."""
    freed_items: list[str] = field(default_factory=list)
    """Identifiers of encoder outputs to drop."""
    new: list[NewSequence] = field(default_factory=list)
    encode: list[tuple[str, int]] = field(default_factory=list)
    """`(request id, index into its features)` of the items whose encoder runs in this step, no identifier twice."""
    chunks: list[SequenceChunk] = field(default_factory=list)
    """Single-token decodes first, then decodes with drafts, then prefill chunks."""

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(chunk.num_tokens for chunk in self.chunks)


@dataclass(slots=True)
class TokenLogprobs:
    """Log-probabilities at one position: the token itself first, then the most likely ones in order."""

    token_ids: list[int]
    logprobs: list[float]
    ranks: list[int]
    """Rank of each token in the vocabulary, 1 for the most likely."""


@dataclass(slots=True)
class StepResult:
    """Sampled tokens, log-probabilities and failures of one step."""

    sampled: dict[str, list[int]] = field(default_factory=dict)
    """Request id to the next tokens, for every chunk with `samples`: the drafts that were right, and one more."""
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    """Request id to the log-probabilities of each sampled token, where the request asked for them."""
    drafts: dict[str, list[int]] = field(default_factory=dict)
    """Request id to guesses of the tokens after its sampled ones; the next step checks as many as it has room for."""
    prompt_logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    """Request id to the log-probabilities of the prompt tokens `start + 1 ... start + num_tokens` of this step's chunk,
    as far as the prompt goes."""
    made: dict[str, Any] = field(default_factory=dict)
    """Request id to what was made of the prompt, for every `prompt_task` whose last chunk this was."""
    failed: dict[str, CorellmError] = field(default_factory=dict)
    """Requests that failed in this step, each with its error; they get no token."""
