"""What a GPU has to do, recorded once and then repeated: CUDA graphs, and what may become one.

Whoever records is given `Graph`s, so that everything but the recording itself runs on a CPU in tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Graph(Protocol):
    """Something that runs once and can be repeated on the same memory."""

    def record(self, step: Callable[[], Tensor]) -> Tensor:
        """Run `step` and remember what it does; gives its result, whose memory each replay writes anew."""
        ...

    def replay(self) -> None:
        """Do it again, with what the tensors that `step` read hold now."""
        ...


class CudaGraph:
    """A CUDA graph.

    Args:
        pool: memory that all graphs of a runner share: `torch.cuda.graph_pool_handle()`.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._graph = torch.cuda.CUDAGraph()

    def record(self, step: Callable[[], Tensor]) -> Tensor:
        """See `Graph.record`. Runs `step` once before: kernels are compiled and libraries set up outside of graphs."""
        step()
        torch.cuda.synchronize()
        with torch.cuda.graph(self._graph, pool=self._pool):
            return step()

    def replay(self) -> None:
        """See `Graph.replay`."""
        self._graph.replay()


class HostContact(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether what runs meanwhile exchanges values with the host, which a graph would not repeat.

    Attributes:
        found: the first such operation, or None.
    """

    _READS = ("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten.item", "aten.equal")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: str | None = None

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        name = str(function)
        devices = {tensor.device for tensor in _tensors((args, kwargs, output)) if tensor.dim()}
        if self.found is None and (name.startswith(self._READS) or len(devices) > 1):
            self.found = name
        return output


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
