"""Decode steps as graphs: captured once per batch size, then replayed.

A step of `n` rows (a sequence's next token, or a draft after it) runs in the smallest size that holds it; the rest is
padding, which reads nothing and writes to the null block. A size that is not captured at load is captured later, when
padding its batches to a larger size has cost as much time as a capture takes. Knows the step as a function of static
tensors.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from corellm.attention.backend import AttentionMetadata
from corellm.attention.graph import Graph, NotCapturable
from corellm.system.transfers import upload
from corellm.worker.input_batch import FlatBatch

logger = logging.getLogger(__name__)

DecodeStep = Callable[[FlatBatch], Tensor]
"""From a batch of single tokens to its logits `[num_seqs, vocab]`."""


def graph_sizes(most_rows: int) -> list[int]:
    """Return the batch sizes for a GPU: 1, 2, 4, 8, then every 8, up to `most_rows`."""
    return _up_to(most_rows, (1, 2, 4, *range(8, most_rows, 8)))


def plan_sizes_for_cpu(most_rows: int) -> list[int]:
    """Return the batch sizes for a CPU, where padding takes as long as what it pads: all to 32, every 4, every 8."""
    return _up_to(most_rows, (*range(1, 32), *range(32, 64, 4), *range(64, most_rows, 8)))


def sizes_at_load(sizes: Sequence[int], num_drafts: int) -> list[int]:
    """Return the sizes of `plan_sizes_for_cpu` to capture at load; others are captured when they are needed.

    With up to `num_drafts` drafts of a sequence a step may have any number of rows: the powers of two, and the size
    that holds a sequence with all of its drafts.
    """
    if not num_drafts:
        return [sizes[0]]
    wanted = {1, 1 + num_drafts, *(1 << i for i in range(_LARGEST_AT_LOAD.bit_length()))}
    return sorted({next(size for size in sizes if size >= rows) for rows in wanted if rows <= sizes[-1]})


def _up_to(largest: int, sizes: Sequence[int]) -> list[int]:
    return [*(size for size in sizes if size < largest), largest]


_LARGEST_AT_LOAD = 64
"""Rows of the largest size that is captured at load for drafts: a capture takes a few times as long as a step."""
_CAPTURE_COST = 2.0
"""How many replays longer a capture takes than a replay; about right for small models on a CPU."""


class DecodeGraphs:
    """Captures a decode step in several sizes and replays it. All sizes write their logits to the same memory.

    A size that `capture` did not capture is captured when it is needed often enough, or no larger one is captured.

    Args:
        step: the step to capture.
        sizes: ascending.
        max_blocks: columns of block tables.
        position_rows: axes of positions: 1, or more for M-RoPE.
        of_layers: what single layers are told of steps, as `FlatBatch` has it of any.
        device: of the step.
        make_graph: called once per size.
    """

    def __init__(
        self,
        step: DecodeStep,
        sizes: Sequence[int],
        *,
        max_blocks: int,
        position_rows: int,
        device: torch.device,
        make_graph: Callable[[], Graph],
        of_layers: Mapping[int, AttentionMetadata] = MappingProxyType({}),
    ) -> None:
        self._step, self._sizes = step, list(sizes)
        self._inputs = StaticInputs(sizes[-1], max_blocks, position_rows, device, of_layers)
        self._make_graph = make_graph
        self._captured: dict[int, Graph] = {}
        self._wasted: defaultdict[int, float] = defaultdict(float)
        """By size that is not captured: what padding to a larger one has cost, in steps of the larger one."""
        self._logits: Tensor

    @property
    def asynchronous(self) -> bool:
        """Whether a step is in flight when `run` returns."""
        return next(iter(self._captured.values())).asynchronous

    @torch.inference_mode()
    def capture(self, sizes: Sequence[int] | None = None) -> None:
        """Capture some sizes, by default all, the largest first, so that the others reuse its memory.

        Raises:
            NotCapturable: the step cannot be captured.
        """
        start, before = time.perf_counter(), _memory_used(self._inputs.device)
        sizes = sorted(self._sizes if sizes is None else sizes, reverse=True)
        like = self._step(self._inputs.batch(sizes[0]))
        self._logits = like.new_empty(self._sizes[-1], like.shape[-1])
        for size in sizes:
            self._capture(size)
        logger.info(
            "captured decode graphs of %s sequences in %.1f s, %.2f GiB",
            ", ".join(map(str, reversed(sizes))), time.perf_counter() - start,
            (_memory_used(self._inputs.device) - before) / 2**30,
        )  # fmt: skip

    def _capture(self, size: int) -> None:
        graph, batch, logits = self._make_graph(), self._inputs.batch(size), self._logits[:size]
        try:
            graph.capture(lambda: logits.copy_(self._step(batch)))
        except NotCapturable:
            self._wasted[size] = -math.inf  # pad it for ever
            raise
        self._captured[size] = graph

    def fits(self, batch: FlatBatch) -> bool:
        """Whether a batch can be replayed: single tokens, no more of them and no more position rows than captured."""
        num_tokens, metadata = len(batch.input_ids), batch.metadata
        single = len(metadata.seq_lens) == num_tokens and metadata.visible_lens is None
        rows = batch.positions.numel() // num_tokens
        return single and num_tokens <= self._sizes[-1] and rows <= self._inputs.position_rows

    @torch.inference_mode()
    def run(self, batch: FlatBatch, token_ids: Tensor | None = None) -> Tensor:
        """Return the logits of a batch that fits, `[num_seqs, vocab]`; the next run overwrites them.

        Args:
            batch: on the host.
            token_ids: `[num_seqs]` on the device, used instead of those in `batch`.
        """
        num_seqs = len(batch.input_ids)
        size = self._size(num_seqs)
        self._inputs.fill(batch, size, token_ids)
        if size in self._captured:
            self._captured[size].replay()
        else:
            self._capture(size)
        return self._logits[:num_seqs]

    def _size(self, num_seqs: int) -> int:
        """Return the captured size to run a batch in, or one to capture.

        It is rent or buy: padding is given up when all of it has cost what a capture does (Karlin et al. 1988,
        Competitive Snoopy Caching).
        """
        size = next(size for size in self._sizes if size >= num_seqs)
        larger = min((other for other in self._captured if other >= size), default=size)
        self._wasted[size] += 1 - size / larger
        return larger if self._wasted[size] < _CAPTURE_COST else size


class StaticInputs:
    """The inputs of a decode step, in tensors whose addresses do not change.

    Args:
        max_num_seqs: rows of each tensor.
        max_blocks, position_rows, device, of_layers: as of `DecodeGraphs`.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_blocks: int,
        position_rows: int,
        device: torch.device,
        of_layers: Mapping[int, AttentionMetadata] = MappingProxyType({}),
    ) -> None:
        self.device, self.position_rows = device, position_rows
        kinds = {id(metadata): kind for kind, metadata in enumerate(_different(of_layers), start=1)}
        self._kinds = {layer: kinds[id(metadata)] for layer, metadata in of_layers.items()}
        """What a layer is told, by number; 0 is what all others are."""
        pinned, num_kinds = device.type == "cuda", 1 + len(kinds)
        self._host = torch.zeros(2 + position_rows + num_kinds, max_num_seqs, dtype=torch.int64, pin_memory=pinned)
        """Rows: tokens, lengths, positions, and the slots of each kind."""
        self._values = torch.zeros_like(self._host, device=device)
        self._tables = [
            torch.zeros(max_num_seqs, max_blocks, dtype=torch.int64, device=device) for _ in range(num_kinds)
        ]
        self._starts = torch.arange(max_num_seqs + 1, dtype=torch.int32, device=device)
        self._copied = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]

    def batch(self, size: int) -> FlatBatch:
        """Return the first `size` rows as a batch of decodes."""
        token_ids, lens = self._values[:2, :size]
        positions = self._values[2 : 2 + self.position_rows, :size]
        told = [
            AttentionMetadata(
                num_decodes=size,
                query_lens=[1] * size,
                seq_lens=[0] * size,
                query_start_loc=self._starts[: size + 1],
                seq_lens_tensor=lens,
                block_tables=tables[:size],
                slot_mapping=slots[:size],
            )
            for tables, slots in zip(self._tables, self._values[2 + self.position_rows :], strict=True)
        ]
        positions = positions if len(positions) == 1 else positions[:, None]
        of_layers = {layer: told[kind] for layer, kind in self._kinds.items()}
        return FlatBatch(token_ids, positions, told[0], of_layers=of_layers)

    def fill(self, batch: FlatBatch, size: int, token_ids: Tensor | None = None) -> None:
        """Write a batch into the first rows, and padding (token 0, the null block) into the others up to `size`.

        `token_ids`, if given, are on the device and replace those of `batch`, which is on the host.
        """
        if self._copied is not None:
            self._copied.synchronize()  # the last step's inputs may still be in transit
        told = [batch.metadata, *_different(batch.of_layers)]
        num_seqs, width = batch.metadata.block_tables.shape
        host, slots = self._host.numpy(), 2 + self.position_rows
        host[0, :num_seqs], host[1, :num_seqs] = batch.input_ids.numpy(), batch.metadata.seq_lens
        host[2:slots, :num_seqs] = batch.positions.numpy().reshape(-1, num_seqs)
        for row, metadata in zip(host[slots:], told, strict=True):
            row[:num_seqs] = metadata.slot_mapping.numpy()
        host[:, num_seqs:size] = 0
        self._values.copy_(self._host, non_blocking=True)
        # stale entries beyond `width` lie behind every sequence and are never read
        for tables, metadata in zip(self._tables, told, strict=True):
            tables[:num_seqs, :width].copy_(upload(metadata.block_tables, self.device), non_blocking=True)
        if token_ids is not None:
            self._values[0, :num_seqs].copy_(token_ids)
        if self._copied is not None:
            self._copied.record()


def _different(of_layers: Mapping[int, AttentionMetadata]) -> Iterable[AttentionMetadata]:
    """Return what is told to some layers, each once."""
    return {id(metadata): metadata for metadata in of_layers.values()}.values()


def _memory_used(device: torch.device) -> int:
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
