"""Encoder-decoders in the scheduler: the prompt that a request's encoder reads, and the blocks of the states it makes.

The keys and values of an encoder's states are written in one step and then only read; a request holds their blocks
beside its table, all at once and until it ends. Equal prompts share them: all of them, as every state depends on the
whole prompt. Knows neither tensors nor queues.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Self

from corellm.errors import PromptTooLongError
from corellm.multimodal.inputs import MultiModalFeature
from corellm.scheduling.admission import AdmissionLimits, embeds_of
from corellm.scheduling.batch import ItemSlice, item_slices
from corellm.scheduling.block_hash import hash_block
from corellm.scheduling.block_pool import BlockPool
from corellm.scheduling.block_user import BlockUser, Wanted
from corellm.scheduling.request import Request
from corellm.scheduling.request_part import PlanItems, RequestPart
from corellm.scheduling.step_plan import StepPlan

Opening = tuple[Sequence[Sequence[int]], Sequence[int]]
"""`DecoderPrompt.choices` and `not_first`: what an output may begin with."""


@dataclass(slots=True)
class EncoderPrompt(RequestPart):
    """What the encoder reads; its items are the request's `features`, and `prompt_token_ids` are the decoder's."""

    token_ids: Sequence[int]
    """Placeholders expanded."""
    num_states: int
    """States that the decoder attends to."""
    digest: bytes
    """Hash of all that the states, and so the decoder's keys and values, depend on, the cache salt included."""
    opening: Opening = ((), ())
    is_encoded: bool = field(default=False, init=False)
    """Whether keys and values of the states are in the cache (for a swapped request: in host memory)."""
    hashes: Sequence[bytes] = field(default=(), init=False)
    """Hashes of the blocks that hold the states, once they were looked up."""

    items_in_prompt = False

    @classmethod
    def of(
        cls,
        token_ids: Sequence[int],
        num_states: int,
        features: Sequence[MultiModalFeature],
        cache_salt: str | None,
        opening: Opening = ((), ()),
    ) -> Self:
        """Return the prompt of these tokens and items."""
        parts = [array("q", token_ids).tobytes()]
        for feature in features:
            parts += [feature.identifier.encode(), feature.placeholder.offset.to_bytes(8, "little")]
        return cls(token_ids, num_states, digest_of(num_states, cache_salt, parts), opening)

    @property
    def num_positions(self) -> int:
        """What counts against a step's budget: the prompt's tokens, or the states made of them and its items."""
        return max(len(self.token_ids), self.num_states)

    def fresh(self) -> Self:
        """Return the part of another request with the same prompt: each is encoded for itself, or shares blocks."""
        return replace(self)

    def stated_tokens(self, request: Request) -> Sequence[int]:
        """Return what the encoder reads; the decoder's first tokens come with the model."""
        return self.token_ids

    def for_worker(self) -> Mapping[str, Any]:
        """Return the tokens that the encoder reads, and what the output may begin with."""
        known = {"encoder_prompt": self.token_ids}
        return {**known, "opening": self.opening} if any(self.opening) else known

    def num_blocks(self, block_size: int) -> int:
        """Return how many blocks the states take."""
        return -(-self.num_states // block_size)

    def num_slots(self, block_size: int) -> int:
        """Return how many slots of the KV cache the states take."""
        return self.num_blocks(block_size) * block_size

    def refusal(self, request: Request, limits: AdmissionLimits) -> PromptTooLongError | None:
        """Return the error where states and tokens do not fit together, or the encoder could not read all items."""
        if request.num_prompt_tokens + 1 > limits.kv_capacity - self.num_slots(limits.block_size):
            return PromptTooLongError(
                f"the prompt has {len(self.token_ids)} tokens, from which the encoder makes {self.num_states} states: "
                f"with the {request.num_prompt_tokens} tokens that the decoder begins with, and one to generate, they "
                f"do not fit within the KV cache of {limits.kv_capacity} tokens; shorten the prompt, or raise "
                f"num_kv_blocks or kv_cache_memory"
            )
        together = embeds_of(request.features)
        if together > limits.encoder_capacity:
            return PromptTooLongError(
                f"the items have {together} embeddings together, and an encoder-decoder's encoder reads all of them in "
                f"one step, whose encoder cache holds {limits.encoder_capacity}; send fewer items, or raise "
                f"encoder_cache_size"
            )
        return None

    def counts(self, request: Request) -> tuple[int, int]:
        """Return the prompt's tokens: all of them were cached, or none."""
        length = len(self.token_ids)
        return length, length if self.is_encoded else 0

    def hash_keys(self, request: Request, start: int, stop: int) -> Iterable[bytes]:
        """Yield the digest in the first block; items are not among the decoder's tokens."""
        if start == 0:
            yield b"encoder"
            yield self.digest

    def chunk(
        self, request: Request, start: int, wanted: int, step: StepPlan, plan: PlanItems
    ) -> tuple[int, list[ItemSlice]]:
        """Return a chunk, if the encoder has run or may run in this step: within its budget, or as the only one."""
        if not self.is_encoded and EncoderPrompt in step.marks and self.num_positions > step.token_budget:
            return 0, []
        return plan(request, start, wanted)

    def items_needed(self, request: Request, start: int, stop: int) -> Iterator[ItemSlice]:
        """Yield what the encoder takes of each item, until it has run."""
        return item_slices(request.features, 0, 0 if self.is_encoded else len(self.token_ids))

    def count(self, step: StepPlan) -> None:
        """Count the encoder's positions, and the blocks of its states."""
        if not self.is_encoded:
            step.token_budget = max(0, step.token_budget - self.num_positions)
            step.marks.add(EncoderPrompt)
            step.prefix_hashes.update(self.hashes)

    def has_taken(self, request: Request, index: int) -> bool:
        """Whether the encoder has read the items."""
        return self.is_encoded

    def restart(self) -> None:
        """Note that the states are gone."""
        self.is_encoded = False


def digest_of(num_states: int, cache_salt: str | None, parts: Iterable[bytes]) -> bytes:
    """Return the hash of states and of what else they depend on."""
    digest = sha256(num_states.to_bytes(8, "little"))
    for part in (b"" if cache_salt is None else b"salt" + cache_salt.encode(), *parts):
        digest.update(len(part).to_bytes(8, "little"))  # framed, as in `block_hash`
        digest.update(part)
    return digest.digest()


@dataclass(frozen=True, slots=True)
class StateSlots:
    """Where the states lie that a chunk attends to across: what the worker is told of it. Plain data."""

    block_table: Sequence[int]
    num_states: int
    encodes: bool
    """Whether the encoder runs in this step and they are written; else they were in an earlier one."""


class StateBlocks(BlockUser):
    """The blocks of all requests' states; requests without an `EncoderPrompt` have none.

    Args:
        pool: to take blocks from, the block manager's.
        block_size: states per block.
        enable_caching: find equal prompts' states and keep them after their request.
    """

    name = "states"

    def __init__(self, pool: BlockPool, block_size: int, *, enable_caching: bool) -> None:
        self._pool, self._block_size, self._enable_caching = pool, block_size, enable_caching
        self._tables: dict[str, list[int]] = {}

    def look_up(self, request: Request) -> None:
        """Note whether the states of an equal prompt are cached, which need not be made again."""
        if (prompt := _prompt(request)) is not None:
            prompt.is_encoded = bool(self._cached(prompt))

    def are_coming(self, request: Request, hashes: Container[bytes]) -> bool:
        """Whether equal states are not cached yet, and are about to be made."""
        prompt = _prompt(request)
        if prompt is None or not self._enable_caching:
            return False
        first = self._hashes(prompt)[0]
        return first in hashes and self._pool.find(first) is None

    def wanted(self, request: Request) -> Wanted:
        """Return the blocks of a request's states, unless it has them."""
        prompt = _prompt(request)
        if prompt is None or request.request_id in self._tables:
            return Wanted()
        cached = self._cached(prompt)
        return Wanted(cached, 0 if cached else prompt.num_blocks(self._block_size))

    def hold(self, request: Request, wanted: Wanted) -> None:
        """Give a request its blocks: those that are cached, or blank ones."""
        if request.request_id not in self._tables:
            self._tables[request.request_id] = list(wanted.shared) or [self._pool.take() for _ in range(wanted.num_new)]

    def notes(self, request: Request) -> Iterable[StateSlots]:
        """Yield where the states are, and whether the encoder runs in this step."""
        if (prompt := _prompt(request)) is not None:
            yield StateSlots(self._tables[request.request_id], prompt.num_states, encodes=not prompt.is_encoded)

    def computed(self, request: Request) -> None:
        """Offer a request's states for reuse, once they are written."""
        prompt = _prompt(request)
        if prompt is None or prompt.is_encoded:
            return
        prompt.is_encoded = True
        if self._enable_caching:
            for block, key in zip(self._tables[request.request_id], self._hashes(prompt), strict=True):
                self._pool.register(block, key)

    def held(self, request: Request) -> Sequence[int]:
        """Return the blocks of a request's states."""
        return self._tables.get(request.request_id, ())

    def release(self, request: Request) -> None:
        """Give back a request's blocks, if it holds any."""
        for block in reversed(self._tables.pop(request.request_id, ())):
            self._pool.release(block)

    def clear(self) -> None:
        """Forget every table, after the pool has released all blocks."""
        self._tables = {}

    def all_held(self) -> Iterable[int]:
        """Yield the blocks of all states."""
        return (block for table in self._tables.values() for block in table)

    def _cached(self, prompt: EncoderPrompt) -> list[int]:
        """The blocks of an equal prompt's states if all are cached, else none; to be shared before anything happens."""
        if not self._enable_caching:
            return []
        found = [self._pool.find(key) for key in self._hashes(prompt)]
        return [] if None in found else [block for block in found if block is not None]

    def _hashes(self, prompt: EncoderPrompt) -> Sequence[bytes]:
        if not prompt.hashes:
            count = prompt.num_blocks(self._block_size)
            prompt.hashes = [hash_block(prompt.digest, [index], [b"states"]) for index in range(count)]
        return prompt.hashes


def _prompt(request: Request) -> EncoderPrompt | None:
    return request.part if isinstance(request.part, EncoderPrompt) else None
