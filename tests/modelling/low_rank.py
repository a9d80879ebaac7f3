"""An extension as small as one can be that adds a product of low rank to the rows of chosen requests.

A request chooses its product by a prompt's key, `{"prompt": ..., "adapter": "first"}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor

from corellm.errors import PromptError
from corellm.hookspecs import ModelContext, hookimpl
from corellm.modelling.linear_additions import LinearAdditions
from corellm.plugin.extensions import load_extensions
from corellm.scheduling.batch import ItemSlice, SequenceChunk
from corellm.scheduling.part_around import PartAround
from corellm.scheduling.request import Request
from corellm.scheduling.request_part import PlanItems, RequestPart
from corellm.scheduling.step_plan import StepPlan
from corellm.system.transfers import upload
from corellm.worker.input_batch import FlatBatch
from corellm.worker.parts.step_part import StepPart
from corellm.worker.sequence_state import SequenceState

Factors = Mapping[str, tuple[Tensor, Tensor]]
"""By layer: `[rank, in_features]` and `[out_features, rank]`."""


def make_factors(sizes: Mapping[str, tuple[int, int]], seed: int, rank: int = 3) -> Factors:
    """Return random factors for layers of these widths, whose products are about as large as the weights."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (
            torch.randn(rank, width, generator=generator) / width**0.5,
            torch.randn(outputs, rank, generator=generator) / rank**0.5,
        )
        for name, (width, outputs) in sizes.items()
    }


def digest_of(factors: Factors) -> bytes:
    """Return what tells these factors from others."""
    found = sha256()
    for name, parts in sorted(factors.items()):
        found.update(name.encode())
        for part in parts:
            found.update(part.numpy().tobytes())
    return found.digest()


class LowRank:
    """The extension.

    Args:
        adapters: by name.
        most: how many of them have requests that run at a time.
        name: of the extension.
    """

    def __init__(self, adapters: Mapping[str, Factors], most: int = 2, name: str = "low-rank") -> None:
        self.adapters, self._most, self.name = adapters, most, name

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside the block, models are loaded with it."""
        manager = load_extensions()
        manager.register(self, name=f"the extension {self.name!r} of tests")
        try:
            yield
        finally:
            manager.unregister(self)

    @hookimpl
    def offer_prompt_key(self) -> AdapterKey:
        """Return the key by which a prompt names an adapter."""
        return AdapterKey({name: digest_of(factors) for name, factors in self.adapters.items()}, self._most)

    @hookimpl
    def offer_step_part(self, linears: LinearAdditions, context: ModelContext, most_rows: int) -> StepPart:
        """Return the part that knows whose rows are whose."""
        part = Products(list(self.adapters), context.device, most_rows)
        for name in next(iter(self.adapters.values())):
            factors = [adapter[name] for adapter in self.adapters.values()]
            part.add(linears, name, [a for a, _ in factors], [b for _, b in factors], context.dtype)
        return part


class AdapterKey:
    """The key `adapter`: one of the names.

    Args:
        digests: of the adapters' weights, by name.
        most: see `LowRank`.
    """

    name = "adapter"

    def __init__(self, digests: Mapping[str, bytes], most: int) -> None:
        self._digests, self._most = digests, most

    def read(self, value: Any) -> str:
        """Return the name of an adapter that there is."""
        if not isinstance(value, str) or value not in self._digests:
            raise PromptError(f"adapter must be one of {', '.join(sorted(self._digests))}, got {value!r:.100}")
        return value

    def variant(self, read: str) -> str:
        """Return nothing: encoders are the model's own."""
        return ""

    def around(self, part: RequestPart, read: str) -> RequestPart:
        """Return the request's part with its adapter."""
        return AdapterOf(part, read, self._digests[read], self._most)


@dataclass(frozen=True)
class AdapterOf(PartAround):
    """A request's adapter, around what else is made of the request."""

    name: str
    digest: bytes
    most: int

    def for_worker(self) -> Mapping[str, Any]:
        return {**super().for_worker(), "adapter": self.name}

    def hash_keys(self, request: Request, start: int, stop: int) -> Iterable[bytes]:
        """Yield what weights the keys and values come of, too: a name can stand for others another time."""
        yield from super().hash_keys(request, start, stop)
        if start == 0:  # later blocks are chained to the first
            yield b"adapter"
            yield self.digest

    def chunk(
        self, request: Request, start: int, wanted: int, step: StepPlan, plan: PlanItems
    ) -> tuple[int, list[ItemSlice]]:
        """Return no tokens while as many others run as may: the request waits."""
        # another extension's part may be around a request's: `for_worker` has what all of them say
        others = {other.part.for_worker().get("adapter") for other in step.running} - {None, self.name}
        return (0, []) if len(others) >= self.most else super().chunk(request, start, wanted, step, plan)


class Products(StepPart):
    """Adds each row's product; a row without an adapter gets zeros.

    Args:
        names: of the adapters.
        device: of the model.
        most_rows: rows of the largest captured step.
    """

    def __init__(self, names: Sequence[str], device: torch.device, most_rows: int) -> None:
        self._numbers = {name: number for number, name in enumerate(names, 1)}
        self._captured = torch.zeros(most_rows, dtype=torch.int64, device=device)
        """The adapter of each row, for captured steps: 0 for none."""
        self._laid_out = self._adapter_of_row = self._captured
        self.most_at_once = 0
        """The most adapters in a step so far."""

    def add(
        self, linears: LinearAdditions, name: str, inward: list[Tensor], outward: list[Tensor], dtype: torch.dtype
    ) -> None:
        """Add to a layer: `[rank, in_features]` and `[out_features, rank]` of each adapter."""
        # [1 + num_adapters, rank, in_features], [1 + num_adapters, out_features, rank]
        a, b = (
            torch.stack([torch.zeros_like(each[0]), *each]).to(self._captured.device, dtype)
            for each in (inward, outward)
        )

        def addition(x: Tensor, output: Tensor) -> None:
            rows = self._adapter_of_row[: len(x)]
            # sums over one row's own numbers: a product of matrices could sum in another order for another batch
            inner = (x[:, None] * a[rows]).sum(-1)
            output += (inner[:, None] * b[rows]).sum(-1)

        linears.add(name, addition)

    def lay_out(self, batch: FlatBatch, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]) -> FlatBatch:
        """Note each row's adapter, also where captured steps look for it."""
        named = [state.sequence.part.get("adapter") for state in states]
        numbers = [0 if name is None else self._numbers[name] for name in named]
        self.most_at_once = max(self.most_at_once, len(set(numbers) - {0}))
        rows = np.repeat(np.array(numbers, dtype=np.int64), [chunk.num_tokens for chunk in chunks])
        self._laid_out = upload(rows, self._captured.device)
        if len(rows) <= len(self._captured):
            self._captured[: len(rows)].copy_(self._laid_out)
        return batch

    @contextmanager
    def running(
        self, batch: FlatBatch, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]
    ) -> Iterator[Mapping[str, Any]]:
        """Run the decoder on the rows that were laid out: this step is no captured one."""
        self._adapter_of_row = self._laid_out
        try:
            yield {}
        finally:
            self._adapter_of_row = self._captured
