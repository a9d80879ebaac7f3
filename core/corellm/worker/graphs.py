"""What a GPU has to do, recorded once and then repeated: CUDA graphs, and what cannot become one.

Whoever records is given `Graph`s, so that everything but the recording itself runs on a CPU in tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from corellm.errors import ConfigError, raised_at


class NotRecordable(Exception):
    """A step waits for values of the device, which a graph would not repeat; says where."""


class Graph(Protocol):
    """Something that runs once and can be repeated on the same memory."""

    def record(self, step: Callable[[], Tensor]) -> Tensor:
        """Run `step` and remember what it does; gives its result, whose memory each replay writes anew.

        Raises:
            NotRecordable: it cannot be repeated so; nothing was recorded.
        """
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
        """See `Graph.record`.

        Runs `step` twice before: once for kernels to be compiled and libraries to be set up, once to see whether it
        waits for the device. A capture that fails could not be undone: the process would be of no use any more.
        """
        with as_if_capturing():
            step()
            with no_waiting():
                step()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(self._graph, pool=self._pool):
                return step()
        except torch.OutOfMemoryError:
            raise  # told by whoever knows what to lower
        except Exception as error:
            raise ConfigError(
                f"a CUDA graph cannot be recorded: {type(error).__name__}: {error} ({raised_at(error)}); start again "
                f"with enforce_eager=True"
            ) from error

    def replay(self) -> None:
        """See `Graph.replay`."""
        self._graph.replay()


@contextmanager
def as_if_capturing() -> Iterator[None]:
    """Code that asks whether it is captured, to go another way, is told so."""
    asked = torch.cuda.is_current_stream_capturing
    torch.cuda.is_current_stream_capturing = lambda: True
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = asked


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whoever waits for the device meanwhile is not recordable."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        raise NotRecordable(f"it waits for the device ({raised_at(error)})") from error
    finally:
        torch.cuda.set_sync_debug_mode(before)
