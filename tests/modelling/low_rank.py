"""An extension as small as one can be that adds a product of low rank to the rows of chosen requests.

A request chooses its product by a prompt's key, `{"prompt": ..., "adapter": "first"}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from corellm.config import ModelConfig
from corellm.errors import PromptError
from corellm.hookspecs import ModelContext, hookimpl
from corellm.loading.model_use import ModelUse
from corellm.modelling.linear_additions import LinearAdditions
from corellm.plugin.extensions import load_extensions
from corellm.scheduling.batch import SequenceChunk
from corellm.scheduling.part_around import PartAround
from corellm.scheduling.request import Request
from corellm.scheduling.request_part import RequestPart
from corellm.serving import InputProcessor, ProcessedPrompt
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


class LowRank:
    """The extension.

    Args:
        adapters: by name.
    """

    def __init__(self, adapters: Mapping[str, Factors]) -> None:
        self.adapters = adapters

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside the block, models are loaded with it."""
        manager = load_extensions()
        manager.register(self, name="the extension 'low-rank' of tests")
        try:
            yield
        finally:
            manager.unregister(self)

    @hookimpl
    def offer_use(self, config: ModelConfig, path: Path, architectures: Sequence[str]) -> ModelUse:
        """Return text generation whose prompts may name an adapter."""
        return Adapted(self.adapters)

    @hookimpl
    def offer_step_part(self, linears: LinearAdditions, context: ModelContext, max_num_seqs: int) -> StepPart:
        """Return the part that knows whose rows are whose."""
        part = Products(list(self.adapters), context.device, max_num_seqs)
        for name in next(iter(self.adapters.values())):
            factors = [adapter[name] for adapter in self.adapters.values()]
            part.add(linears, name, [a for a, _ in factors], [b for _, b in factors], context.dtype)
        return part


class Adapted(ModelUse):
    """Text generation; a prompt may name an adapter.

    Args:
        names: of the adapters.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)

    def input_processor(self, context: ModelContext, max_model_len: int) -> Callable[..., InputProcessor]:
        return partial(AdaptedInputs, adapters=self._names)


class AdaptedInputs(InputProcessor):
    """Prompts with the key `adapter`, which is one of `adapters`."""

    prompt_keys = InputProcessor.prompt_keys | {"adapter"}

    def __init__(self, *args: Any, adapters: frozenset[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._adapters = adapters

    def process_fields(self, fields: Mapping[str, Any]) -> ProcessedPrompt:
        prompt, adapter = super().process_fields(fields), fields.get("adapter")
        if adapter is not None and adapter not in self._adapters:
            raise PromptError(f"adapter must be one of {', '.join(sorted(self._adapters))}, got {adapter!r:.100}")
        return prompt if adapter is None else replace(prompt, extra={**prompt.extra, "adapter": adapter})

    def part_of(self, processed: ProcessedPrompt) -> RequestPart:
        part, adapter = super().part_of(processed), processed.extra.get("adapter")
        return part if adapter is None else AdapterOf(part, adapter)


@dataclass(frozen=True)
class AdapterOf(PartAround):
    """A request's adapter, around what else is made of the request."""

    name: str

    def for_worker(self) -> Mapping[str, Any]:
        return {**super().for_worker(), "adapter": self.name}

    def hash_keys(self, request: Request, start: int, stop: int) -> Iterable[bytes]:
        yield from super().hash_keys(request, start, stop)
        if start == 0:  # later blocks are chained to the first
            yield b"adapter"
            yield self.name.encode()


class Products(StepPart):
    """Adds each row's product; a row without an adapter gets zeros.

    Args:
        names: of the adapters.
        device: of the model.
        max_num_seqs: rows of the largest captured step.
    """

    def __init__(self, names: Sequence[str], device: torch.device, max_num_seqs: int) -> None:
        self._numbers = {name: number for number, name in enumerate(names, 1)}
        self._captured = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        """The adapter of each row, for captured steps: 0 for none."""
        self._laid_out = self._adapter_of_row = self._captured

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
