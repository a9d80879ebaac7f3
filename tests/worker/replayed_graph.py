"""A graph without a GPU: the operations of a step are captured, and replayed on the same memory.

As with CUDA graphs no Python of the step runs again, what it read from the host stays as it was, and asking the device
for a value while capturing is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from corellm.attention.graph import NotCapturable
from corellm.worker.graphs import as_if_capturing

_HOST_READS = (
    "_local_scalar_dense", "nonzero", "is_nonzero", "item", "equal", "allclose", "masked_select", "unique", "_unique",
    "repeat_interleave.Tensor", "repeat_interleave.self_Tensor", "where.default",
)  # fmt: skip


class ReplayedGraph:
    """See `corellm.worker.graphs.Graph`."""

    asynchronous = True

    def __init__(self) -> None:
        self._calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def capture(self, step: Callable[[], Tensor]) -> Tensor:
        with as_if_capturing(), _Recorder(self._calls):
            return step()

    def replay(self) -> None:
        for function, args, kwargs, output in self._calls:
            again = function(*args, **kwargs)
            for old, new in zip(_tensors(output), _tensors(again), strict=True):
                if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():  # neither a view nor in place
                    old.copy_(new)


class _Recorder(TorchDispatchMode):
    def __init__(self, calls: list[Any]) -> None:
        super().__init__()
        self._calls = calls

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(function).removeprefix("aten.")
        if name.startswith(("index.", "index_put")) and any(x is not None and x.dtype == torch.bool for x in args[1]):
            raise NotCapturable(f"{function} by a mask waits for the device")
        if name.startswith(_HOST_READS):
            raise NotCapturable(f"{function} waits for the device")
        output = function(*args, **(kwargs or {}))
        self._calls.append((function, args, kwargs or {}, output))
        return output


def _tensors(output: Any) -> Iterator[Tensor]:
    for value in output if isinstance(output, (tuple, list)) else [output]:
        if isinstance(value, Tensor):
            yield value
