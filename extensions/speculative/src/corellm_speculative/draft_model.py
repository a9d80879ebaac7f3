"""The draft model: its weights, a KV cache of its own, and one forward pass of it.

Knows chunks and blocks; knows neither which sequences are drafted nor whether that pays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from corellm.attention.backend import AttentionBackend
from corellm.attention.graph import Graph
from corellm.hookspecs import ModelContext
from corellm.loading.dummy_steps import capture_graphs, profile_run
from corellm.loading.model_parts import ModelParts
from corellm.plugin.extensions import first_result
from corellm.plugin.hook_callers import HookCallers
from corellm.sampling.sampling_state import SamplingState
from corellm.scheduling.batch import SequenceChunk
from corellm.system.transfers import upload, upload_all
from corellm.worker.decode_graphs import graph_sizes, plan_sizes_for_cpu
from corellm.worker.graphs import CudaGraph
from corellm.worker.kv_cache import KVCache, block_bytes
from corellm.worker.model_runner import ModelRunner
from corellm.worker.sequence_state import SequenceState

if TYPE_CHECKING:
    from corellm_recurrent.states import RecurrentStates
    from corellm_speculative.draft_states import DraftRows


class DraftModel:
    """Computes the tokens that the draft model chooses.

    Args:
        context, hooks, weights: of the draft model.
        backend: of its attention.
        kv_dtype: of its cache.
        block_size: tokens of a block.
        max_len: longest text.
        max_num_seqs: most sequences at once.
        num_tokens: most tokens of a forward pass.
        captures: whether steps of single tokens are captured.
        states: of layers that keep some, on `DraftRows`; None for a model without such layers.

    Attributes:
        num_ids: tokens below have an embedding, and can be chosen.
    """

    def __init__(
        self,
        context: ModelContext,
        hooks: HookCallers,
        weights: ModelParts,
        backend: AttentionBackend,
        kv_dtype: torch.dtype,
        *,
        block_size: int,
        max_len: int,
        max_num_seqs: int,
        num_tokens: int,
        captures: bool,
        states: RecurrentStates | None = None,
    ) -> None:
        self._context, self._hooks, self._weights = context, hooks, weights
        self._backend, self._kv_dtype, self._states = backend, kv_dtype, states
        self._captures = captures and backend.capturable and states is None
        self.block_size, self.max_len, self.num_tokens = block_size, max_len, num_tokens
        self._max_num_seqs = max_num_seqs
        self.num_ids = min(weights.vocab_size, weights.embedding_size)
        self._runner: ModelRunner
        self._free: list[int] = []

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of its cache."""
        return block_bytes(self._weights.layout, self.block_size, self._kv_dtype)

    def profile(self) -> None:
        """Run the largest forward pass."""
        profile_run(self._make_runner(1), self.num_tokens, self._max_num_seqs, self.max_len, ())

    def allocate(self, num_blocks: int) -> None:
        """Take memory for a cache of so many blocks, and capture steps; the first block is nobody's."""
        self._runner = self._make_runner(num_blocks)
        self._free = [*range(num_blocks - 1, 0, -1)]
        if (make_graph := self._make_graph()) is not None:
            rows = 2 * self._max_num_seqs  # after drafts that were all right the last of them is read, too
            on_cpu = self._context.device.type == "cpu"
            capture_graphs(
                self._runner,
                plan_sizes_for_cpu(rows) if on_cpu else graph_sizes(rows),
                max_blocks=-(-self.max_len // self.block_size),
                position_rows=1,
                make_graph=make_graph,
                at_once=[1, 2] if on_cpu else None,
            )

    def _make_graph(self) -> Callable[[], Graph] | None:
        if not self._captures:
            return None
        if self._context.device.type != "cuda":
            return self._backend.make_graph
        stream = torch.cuda.Stream(self._context.device)  # type: ignore[no-untyped-call]
        return partial(CudaGraph, torch.cuda.graph_pool_handle(), stream)

    def _make_runner(self, num_blocks: int) -> ModelRunner:
        weights, context = self._weights, self._context
        return ModelRunner(
            self._hooks,
            weights.model,
            weights.language_model,
            KVCache(weights.layout, num_blocks, self.block_size, self._kv_dtype, context.device),
            self._backend,
            block_size=self.block_size,
            embedding_width=None,
            dtype=context.dtype,
            device=context.device,
            new_sampling=partial(SamplingState, vocab_size=weights.vocab_size, engine_seed=0),
            vocab_size=self.num_ids,
            sample=first_result("register_sampling", callable, device=context.device),
            make_parts=lambda runner: [] if self._states is None else [self._states],
        )

    def extend(self, block_table: list[int], num_tokens: int) -> bool:
        """Give a sequence blocks for so many tokens; returns whether there were enough."""
        missing = -(-num_tokens // self.block_size) - len(block_table)
        if missing > len(self._free):
            return False
        block_table += [self._free.pop() for _ in range(missing)]
        return True

    def release(self, request_id: str, block_table: list[int]) -> None:
        """Take back a sequence's blocks, and what else is kept of it."""
        self._free += reversed(block_table)
        block_table.clear()
        if self._states is not None:
            self._states.release([request_id], ())

    def resume(self, request_id: str, num_computed: int) -> int:
        """Return how much of what was computed of a sequence it goes on from: all, or nothing where a state is gone."""
        if self._states is None or not num_computed:
            return num_computed
        rows = cast("DraftRows", self._states.rows)
        if rows.has(request_id, num_computed):
            return num_computed
        rows.release(request_id)
        return 0

    def next_tokens(self, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]) -> list[int]:
        """Return the token after each chunk that samples; one that cannot be chosen is negative.

        Args:
            chunks: single tokens first.
            states: of each, whose sampling is that behind the chunk.
        """
        runner, ending = self._runner, [i for i, chunk in enumerate(chunks) if chunk.samples]
        batch = runner.lay_out(chunks, states)
        if runner.graphs is not None and len(ending) == len(chunks) and runner.graphs.fits(batch):
            logits = runner.graphs.run(batch)
        else:
            hidden = runner.forward(upload_all(batch, runner.device), chunks, states)
            if self._states is not None:
                self._states.commit()
            if not ending:
                return []
            ends = np.cumsum([chunk.num_tokens for chunk in chunks]) - 1
            logits = runner.logits(hidden[upload(ends[ending], runner.device)])
        sampling = [states[i].sampling for i in ending]
        return runner.sampler.start(_widened(logits, sampling[0].vocab_size), sampling).wait().token_ids


def _widened(logits: Tensor, width: int) -> Tensor:
    """Return logits of the tokens that the model knows, whose padding may be another than the draft model's."""
    missing = width - logits.shape[-1]
    return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf) if missing else logits
