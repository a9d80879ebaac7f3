"""Decides what runs in the next step, and takes in the results of the last one.

The scheduler owns every request's state and moves requests between waiting, running, swapped and finished. The block
manager and the encoder planner find room for it; the worker computes.

Three rules guarantee progress. Rank (priority, then arrival) orders every queue, and only the last in rank is ever
preempted, so the first always makes progress. A prompt is admitted with blocks for all of its tokens, so only decodes
can run out of blocks. And a step that preempts admits no request.
"""

from __future__ import annotations

import bisect
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from corellm.config import SchedulerConfig
from corellm.errors import InvalidParameterError
from corellm.scheduling.admission import AdmissionLimits
from corellm.scheduling.batch import ItemSlice, ScheduledBatch, SequenceChunk, StepResult
from corellm.scheduling.block_manager import BlockManager
from corellm.scheduling.encoder_cache import EncoderCache
from corellm.scheduling.encoder_plan import EncoderPlanner
from corellm.scheduling.headroom import headroom, is_exhausted
from corellm.scheduling.request import Request, RequestStatus
from corellm.scheduling.request_queue import RequestQueue
from corellm.scheduling.step_plan import StepPlan

MAX_PASSED_OVER = 64
"""Most waiting requests that a step passes over because their prefix is being computed: bounds the work of a step."""


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """A snapshot for progress bars and metrics."""

    num_running: int
    num_waiting: int
    num_swapped: int
    num_preemptions: int
    """Since the scheduler was made."""
    kv_cache_usage: float
    """Share of the KV blocks that sequences hold, 0 to 1."""
    encoder_cache_usage: float
    """Share of the encoder cache that requests still need, 0 to 1."""
    prefix_cache_queries: int
    """Tokens of admitted requests, since the scheduler was made."""
    prefix_cache_hits: int
    """How many of them were found in the prefix cache."""
    encoder_cache_queries: int
    """Placeholders that an encoder's output was needed for, since the scheduler was made."""
    encoder_cache_hits: int
    """How many of them were found in the encoder cache."""
    num_drafts: int
    """Decodes with drafts, since the scheduler was made."""
    num_draft_tokens: int
    """Their drafts."""
    accepted_per_position: tuple[int, ...]
    """How many first, second, third, ... drafts were right."""


class Scheduler:
    """Picks each step's work within one token budget, and takes in the results.

    A step is `schedule`, run the batch, `update`; `add_request` and `finish_requests` come at any moment. While a
    batch is in flight, `schedule_ahead` may schedule the one after it; updates come in the same order.

    Args:
        scheduler_config: policy and limits.
        block_manager: device and host blocks; used by this scheduler alone.
        encoder_cache: bookkeeping of encoder outputs; used by this scheduler alone.
        max_model_len: longest sequence, prompt and output together.
        max_num_seqs: sequences running at once.
        max_num_batched_tokens: token budget of a step.
        longest_whole: most tokens of a prompt that must be computed in one step; None for any number.
        clock: seconds, monotonic; of the same kind as `Request.arrival_time`.
    """

    def __init__(
        self,
        scheduler_config: SchedulerConfig,
        block_manager: BlockManager,
        encoder_cache: EncoderCache,
        *,
        max_model_len: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        longest_whole: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = scheduler_config
        self.blocks = block_manager
        self.encoder_cache = encoder_cache
        self.max_num_seqs, self.max_num_batched_tokens = max_num_seqs, max_num_batched_tokens
        chunked = scheduler_config.enable_chunked_prefill
        self.limits = AdmissionLimits(
            max_model_len=max_model_len,
            kv_capacity=block_manager.capacity * block_manager.block_size,
            encoder_capacity=encoder_cache.step_embeds,
            block_size=block_manager.block_size,
            max_prompt_step=None if chunked else max_num_batched_tokens,
            longest_whole=longest_whole,
        )
        self.requests: dict[str, Request] = {}
        """Every unfinished request, by id."""
        self.running: list[Request] = []
        """In order of rank."""
        self.waiting = RequestQueue()
        self.swapped = RequestQueue()
        self._encoders = EncoderPlanner(encoder_cache)
        self._clock = clock
        self._arrivals = itertools.count()
        self._released: list[str] = []
        self._num_preemptions = 0
        self._prefix_cache_queries = self._prefix_cache_hits = 0
        self._num_drafts = self._num_draft_tokens = 0
        self._accepted_per_position: list[int] = []
        self._steps: deque[StepPlan] = deque()
        """Steps in flight: scheduled and not updated yet. Two while one is scheduled ahead."""

    # Requests come and go -----------------------------------------------------------------------------------------

    def add_request(self, request: Request) -> bool:
        """Queue a request, or refuse one that can never run.

        Returns:
            False if it was refused: its status is then `FINISHED_IGNORED` and its `error` says why.

        Raises:
            InvalidParameterError: an unfinished request has the same id.
        """
        if request.request_id in self.requests:
            raise InvalidParameterError(
                f"request id {request.request_id!r} is in use; wait until it finishes or choose another",
                param="request_id",
            )
        request.error = self.limits.refusal(request)
        if request.error is not None:
            request.status = RequestStatus.FINISHED_IGNORED
            return False
        room = self.limits.kv_capacity - request.part.num_slots(self.limits.block_size)
        request.limit_total_tokens(min(self.limits.max_model_len, room))
        priority = request.priority if self.config.scheduling_policy == "priority" else 0
        request.rank = (priority, next(self._arrivals))
        self.blocks.surround(request)
        self.requests[request.request_id] = request
        self.waiting.push(request)
        return True

    def finish_requests(self, request_ids: Iterable[str], status: RequestStatus) -> list[Request]:
        """End requests now, whatever their state; a step in flight has no effect on them any more.

        Args:
            request_ids: ids that are unknown, or finished already, are ignored.
            status: a final status.

        Returns:
            The requests that this ended.
        """
        assert status.is_finished, status
        ended = [self.requests[name] for name in dict.fromkeys(request_ids) if name in self.requests]
        for request in ended:
            self._finish(request, status)
        return ended

    def restart(self, requests: Iterable[Request]) -> None:
        """Start over with these requests, added before, as if each had just been preempted by recompute.

        Works from any state that an interrupted call left. The worker must forget every sequence and encoder output.
        """
        self.blocks.free_all()
        self.encoder_cache.clear()
        self.running, self._released = [], []
        self.waiting, self.swapped = RequestQueue(), RequestQueue()
        self._steps.clear()
        self.requests = {request.request_id: request for request in requests}
        for request in self.requests.values():
            self.waiting.push(request)

    def has_unfinished_requests(self) -> bool:
        """Whether another step is needed."""
        return bool(self.requests)

    @property
    def num_waiting(self) -> int:
        """Requests not admitted yet, or preempted by recompute."""
        return len(self.waiting)

    @property
    def num_running(self) -> int:
        """Requests that the worker holds."""
        return len(self.running)

    @property
    def num_swapped(self) -> int:
        """Requests whose KV is in host memory."""
        return len(self.swapped)

    def get_stats(self) -> SchedulerStats:
        """Counts as of now."""
        return SchedulerStats(
            len(self.running),
            len(self.waiting),
            len(self.swapped),
            self._num_preemptions,
            self.blocks.usage,
            self.encoder_cache.usage,
            self._prefix_cache_queries,
            self._prefix_cache_hits,
            self.encoder_cache.queries,
            self.encoder_cache.queries - self.encoder_cache.misses,
            self._num_drafts,
            self._num_draft_tokens,
            tuple(self._accepted_per_position),
        )

    # A step ---------------------------------------------------------------------------------------------------------

    def schedule(self) -> ScheduledBatch:
        """Decide what the next step computes. Its chunks are empty if nothing can run (or nothing is left to do)."""
        self._steps.clear()  # interrupted before their update
        step = StepPlan(
            token_budget=self.max_num_batched_tokens, block_size=self.blocks.block_size, running=self.running
        )
        self._encoders.begin_step()
        if self.config.enable_chunked_prefill:
            self._schedule_together(step)
        else:
            self._schedule_prompts_first(step)
        self._add_drafts(step)
        step.seal()
        step.released, self._released = self._released, []
        step.freed_items = self.encoder_cache.take_freed()
        step.messages = self.blocks.take_messages()
        self._steps.append(step)
        return step

    def _schedule_together(self, step: StepPlan) -> None:
        """Chunked prefill: decodes first, then prefills as far as the budget goes, running ones before new ones."""
        prefilling = self._schedule_decodes(step)
        self._continue_prefills(step, prefilling)
        if self.swapped:
            self._resume_swapped(step)
        self._admit_waiting(step)

    def _schedule_prompts_first(self, step: StepPlan) -> None:
        """Without chunked prefill: whole prompts while any wait, else all decodes."""
        self._continue_prefills(step, [request for request in self.running if not request.is_decoding])
        self._admit_waiting(step)
        if step.is_empty:
            self._schedule_decodes(step)
            self._resume_swapped(step)

    def _schedule_decodes(self, step: StepPlan) -> list[Request]:
        """Schedule every decode that has room for its token or can be given it; returns the running prefills.

        Goes in order of rank and preempts from the other end, so a request scheduled in this step is never preempted.
        """
        prefilling = []
        for request in self.running:  # `_make_room` may take others off its end meanwhile
            if not step.token_budget:
                break
            if not request.is_decoding:
                prefilling.append(request)
            elif self._make_room(request, step):
                block_table, notes = self.blocks.reach(request, request.num_computed_tokens, request.num_tokens)
                step.add_decode(request, block_table, notes)
        return prefilling

    def _add_drafts(self, step: StepPlan) -> None:
        """Add drafts to decodes, once all else has its place: as many as budget, length and free blocks allow."""
        for request in [request for _, request in step.decodes if request.draft_token_ids]:
            most = min(step.token_budget, request.max_output_tokens - len(request.output_token_ids) - 1)
            drafts = request.draft_token_ids[:most]
            if drafts and self.blocks.allocate(request, 1 + len(drafts)):
                self.blocks.reach(request, request.num_computed_tokens, request.num_tokens + len(drafts))
                step.add_drafts(request, drafts)

    def _make_room(self, request: Request, step: StepPlan) -> bool:
        """Find a slot for one more token, preempting the last in rank, at worst the request itself."""
        while not self.blocks.allocate(request, 1):
            victim = self.running.pop()
            self._preempt(victim, step)
            if victim is request:
                return False
        return True

    def _continue_prefills(self, step: StepPlan, prefilling: list[Request]) -> None:
        for request in prefilling:
            num_tokens, items = self._plan_chunk(request, request.num_computed_tokens, step)
            if num_tokens:
                self._add_chunk(request, num_tokens, items, step)

    def _resume_swapped(self, step: StepPlan) -> None:
        """Bring swapped requests back in order of rank, but not in a step that just preempted."""
        while self.swapped and not step.has_preempted and self._has_capacity(step):
            request = self.swapped.peek()
            num_tokens, items = self._plan_chunk(request, request.num_computed_tokens, step)
            copies = self.blocks.swap_in(request, reserve=self._reserve(request)) if num_tokens else None
            if copies is None:
                return
            step.swap_in += copies
            self._start(self.swapped.pop(), step)
            self._add_chunk(request, num_tokens, items, step)

    def _admit_waiting(self, step: StepPlan) -> None:
        """Admit waiting requests in order of rank, but those whose prefix this step computes, or part is not ready."""
        if step.has_preempted or self.swapped:
            return
        passed_over: list[Request] = []
        while self.waiting and self._has_capacity(step) and len(passed_over) < MAX_PASSED_OVER:
            if self.blocks.num_free_blocks <= self._reserve(self.waiting.peek()):
                break  # it needs at least one block: no need to look up its prefix
            computed_blocks = self.blocks.get_computed_blocks(self.waiting.peek())
            request = self.waiting.pop()
            if self.blocks.are_coming(request, computed_blocks, step.prefix_hashes) or not request.part.is_ready(step):
                passed_over.append(request)
            elif not self._admit(request, computed_blocks, step):
                passed_over.append(request)
                break
        for request in passed_over:
            self.waiting.push(request)

    def _admit(self, request: Request, computed_blocks: list[int], step: StepPlan) -> bool:
        start = len(computed_blocks) * self.blocks.block_size
        num_tokens, items = self._plan_chunk(request, start, step)
        left, reserve = request.num_tokens - start, self._reserve(request)
        if not num_tokens or not self.blocks.allocate(request, left, computed_blocks, reserve=reserve):
            return False
        request.num_computed_tokens = start
        if request.first_scheduled_time is None:
            self._note_first_start(request)
        self._start(request, step)
        self._add_chunk(request, num_tokens, items, step)
        return True

    def _note_first_start(self, request: Request) -> None:
        """Note for the metrics when a request was first admitted, and how many tokens were cached then."""
        request.first_scheduled_time = self._clock()
        length, cached = request.part.counts(request)
        request.num_cached_tokens = cached
        self._prefix_cache_queries += length
        self._prefix_cache_hits += cached

    def _has_capacity(self, step: StepPlan) -> bool:
        return step.token_budget > 0 and len(self.running) < self.max_num_seqs

    def _reserve(self, request: Request) -> int:
        return headroom(request, self.blocks.capacity) if self.running else 0

    def _plan_chunk(self, request: Request, start: int, step: StepPlan) -> tuple[int, list[ItemSlice]]:
        """Number of tokens from `start` on that can run now, and the items they take embeddings of.

        Without chunked prefill all or none; only a preempted sequence longer than a step's budget takes several steps.
        """
        left = request.num_tokens - start
        wanted = min(left, step.token_budget)
        num_tokens, items = request.part.chunk(request, start, wanted, step, self._encoders.plan)
        if num_tokens < left <= self.max_num_batched_tokens and not self.config.enable_chunked_prefill:
            return 0, []
        return num_tokens, items

    def _add_chunk(self, request: Request, num_tokens: int, items: list[ItemSlice], step: StepPlan) -> None:
        if items:
            step.encode += self._encoders.commit(request, items)
        start = request.num_computed_tokens
        block_table, notes = self.blocks.reach(request, start, start + num_tokens)
        if request.is_decoding:
            step.add_decode(request, block_table, notes)
        else:
            step.add_prefill(request, num_tokens, items, block_table, notes)

    def look_ahead(self) -> None:
        """Hash the prompts that fit the next step, of requests that wait: it will look them up in the prefix cache."""
        left = self.max_num_batched_tokens
        for request in itertools.islice(self.waiting, max(0, self.max_num_seqs - len(self.running))):
            if left <= 0:
                return
            self.blocks.hash_prompt(request)
            left -= request.num_tokens

    # The step after it, and results ----------------------------------------------------------------------------------

    def schedule_ahead(self) -> ScheduledBatch | None:
        """Schedule the step after the one in flight, before its tokens are known: the same decodes, one token further.

        Requests that reach their length in the step in flight are left out; of those that a stop token ends there, the
        result is dropped.

        Returns:
            None if the next step needs another batch: a waiting request can be admitted, a prompt is not computed
            whole, or there are no blocks.
        """
        (step,) = self._steps
        if self.swapped or (self.waiting and len(self.running) < self.max_num_seqs) or not step.requests:
            return None
        going_on: list[Request] = []
        for chunk, request in zip(step.chunks, step.requests, strict=True):
            if request.status is not RequestStatus.RUNNING or not chunk.samples or chunk.num_tokens != 1:
                return None
            if len(request.output_token_ids) + 1 < request.max_output_tokens:
                going_on.append(request)
            elif self.waiting:
                return None
        if not going_on or not all(self.blocks.allocate(request, 2) for request in going_on):
            return None
        ahead = StepPlan(token_budget=0, block_size=self.blocks.block_size, running=self.running)
        for request in going_on:
            position = request.num_computed_tokens + 1
            block_table, _ = self.blocks.reach(request, position, position + 1)
            ahead.add_decode_ahead(request, block_table)
        ahead.seal()
        ahead.messages = self.blocks.take_messages()
        self._steps.append(ahead)
        return ahead

    def update(self, batch: ScheduledBatch, result: StepResult) -> list[Request]:
        """Take in the result of the oldest batch in flight.

        Returns:
            The requests that got a token or finished, in the order of the batch.
        """
        step = self._steps.popleft()
        assert batch is step, "updates come in the order in which steps were scheduled"
        changed = []
        for chunk, request in zip(batch.chunks, step.requests, strict=True):
            if request.status is not RequestStatus.RUNNING:
                continue  # ended while the step ran
            if request.request_id in result.failed:
                request.error = result.failed[request.request_id]
                self._finish(request, RequestStatus.FINISHED_ERROR)
                changed.append(request)
            elif self._advance(request, chunk, result):
                changed.append(request)
        if result.failed:
            self._discard_failed_items(step, result)
        return changed

    # Changes of state -------------------------------------------------------------------------------------------------

    def _start(self, request: Request, step: StepPlan) -> None:
        request.status = RequestStatus.RUNNING
        bisect.insort(self.running, request, key=lambda other: other.rank)
        step.start(request)

    def _preempt(self, request: Request, step: StepPlan) -> None:
        """Take a request that was just popped from `running` off the device, by swap if configured and possible."""
        self.encoder_cache.release_all(request.request_id)
        self._released.append(request.request_id)
        step.has_preempted = True
        self._num_preemptions += 1
        request.num_preemptions += 1
        if is_exhausted(request, self.blocks.capacity):
            request.rank = (float("-inf"), request.rank[1])
        copies = self.blocks.swap_out(request) if self.config.preemption_mode == "swap" else None
        if copies is not None:
            step.swap_out += copies
            step.swapped.append(request.request_id)
            request.status = RequestStatus.SWAPPED
            self.swapped.push(request)
        else:
            self.blocks.free(request)
            request.forget_computed()
            request.status = RequestStatus.WAITING
            self.waiting.push(request)

    def _advance(self, request: Request, chunk: SequenceChunk, result: StepResult) -> bool:
        """Take in a computed chunk; returns whether the request got a token, or is done with its prompt."""
        request.num_computed_tokens, has_ended = chunk.start + chunk.num_tokens, False
        if request.prompt_task is not None:
            has_ended = chunk.samples
            request.status = RequestStatus.FINISHED_STOPPED if has_ended else request.status
        elif chunk.samples:
            has_ended = self._append(request, chunk, result)
        self.blocks.mark_computed(request)
        if request.features:
            self._encoders.release_computed(request)
        if has_ended:
            self._release(request, RequestStatus.RUNNING)
        return chunk.samples

    def _append(self, request: Request, chunk: SequenceChunk, result: StepResult) -> bool:
        """Append the sampled tokens up to the one that ends the completion, and drop those after it.

        What was computed of drafts that were wrong is given up: the next tokens are written over it.

        Returns:
            Whether the completion ended.
        """
        sampled = result.sampled[request.request_id]
        if result.drafts or request.draft_token_ids:
            request.draft_token_ids = [] if self._steps else result.drafts.get(request.request_id, [])
        if not chunk.num_drafts:
            return request.append_token(sampled[0])
        self._count_drafts(chunk.num_drafts, len(sampled) - 1)
        before = len(request.output_token_ids)
        has_ended = any(map(request.append_token, sampled))
        del sampled[len(request.output_token_ids) - before :]
        request.num_computed_tokens = request.num_tokens - 1
        return has_ended

    def _count_drafts(self, num_drafts: int, num_accepted: int) -> None:
        counts = self._accepted_per_position
        self._num_drafts, self._num_draft_tokens = self._num_drafts + 1, self._num_draft_tokens + num_drafts
        counts += [0] * (num_drafts - len(counts))
        for position in range(num_accepted):
            counts[position] += 1

    def _finish(self, request: Request, status: RequestStatus) -> None:
        before, request.status = request.status, status
        self._release(request, before)

    def _release(self, request: Request, before: RequestStatus) -> None:
        """Release all that a request holds that has just finished; `before` is its last unfinished status."""
        if before is RequestStatus.RUNNING:
            self.running.remove(request)
            self._released.append(request.request_id)
        elif before is RequestStatus.SWAPPED:
            self.swapped.remove(request)
            self._released.append(request.request_id)  # what the host keeps of it
        else:
            self.waiting.remove(request)
        self.encoder_cache.release_all(request.request_id)
        self.blocks.free(request)
        del self.requests[request.request_id]

    def _discard_failed_items(self, step: StepPlan, result: StepResult) -> None:
        """Forget the items of failed requests that this step encoded: the worker may not have them."""
        items = {request.request_id: request.features for request in step.requests}
        for request_id, index in step.encode:
            if request_id in result.failed:
                self.encoder_cache.discard(items[request_id][index].identifier)
