"""What a GPU has to do, captured once and then repeated: CUDA graphs, and what cannot become one.

Whoever records is given `Graph`s, so that everything but the recording itself runs on a CPU in tests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from corellm.errors import ConfigError, raised_at


class NotCapturable(Exception):
    """A step exchanges values with the host, which a graph would not repeat, or does not run as one; says where."""


class Graph(Protocol):
    """Something that runs once and can be repeated on the same memory."""

    def capture(self, step: Callable[[], Tensor]) -> Tensor:
        """Run `step` and remember what it does; gives its result, whose memory each replay writes anew.

        Raises:
            NotCapturable: it cannot be repeated so; nothing was captured.
        """
        ...

    def replay(self) -> None:
        """Do it again, with what the tensors that `step` read hold now."""
        ...


class CudaGraph:
    """A CUDA graph.

    Args:
        pool: memory that all graphs of a runner share: `torch.cuda.graph_pool_handle()`.
        stream: on which they are captured, of the runner's own device.
    """

    def __init__(self, pool: Any, stream: torch.cuda.Stream) -> None:
        self._pool, self._stream = pool, stream
        self._graph = torch.cuda.CUDAGraph()

    def capture(self, step: Callable[[], Tensor]) -> Tensor:
        """See `Graph.capture`.

        Runs `step` twice before: once for kernels to be compiled and libraries to be set up, once to see whether it
        waits for the device. A capture that fails could not be undone: the process would be of no use any more.
        """
        with as_if_capturing():
            step()
            with no_waiting():
                step()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(self._graph, pool=self._pool, stream=self._stream):
                return step()
        except torch.OutOfMemoryError:
            raise  # told by whoever knows what to lower
        except Exception as error:
            raise ConfigError(
                f"a CUDA graph cannot be captured: {type(error).__name__}: {error} ({raised_at(error)}); start again "
                f"with enforce_eager=True"
            ) from error

    def replay(self) -> None:
        """See `Graph.replay`."""
        self._graph.replay()


_ONE_AT_A_TIME = threading.RLock()
"""What follows changes settings of the whole process."""


@contextmanager
def as_if_capturing() -> Iterator[None]:
    """Code that asks whether it is captured, to go another way, is told so; if it fails, it cannot be captured."""
    with _ONE_AT_A_TIME:
        asked = torch.cuda.is_current_stream_capturing
        torch.cuda.is_current_stream_capturing = lambda: True
        try:
            yield
        except (NotCapturable, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise NotCapturable(f"{type(error).__name__}: {error} ({raised_at(error)})") from error
        finally:
            torch.cuda.is_current_stream_capturing = asked


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whoever waits for the device meanwhile, or copies between it and the host, cannot be captured."""
    with _ONE_AT_A_TIME:
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            with _NoCopies():  # type: ignore[no-untyped-call]
                yield
        except RuntimeError as error:
            if "synchronizing" not in str(error):
                raise
            raise NotCapturable(f"it waits for the device ({raised_at(error)})") from error
        finally:
            torch.cuda.set_sync_debug_mode(before)


class _NoCopies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Finds copies that nobody waits for: a graph would repeat them from memory that is something else's by then."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        # numbers, which are tensors of the CPU without dimensions, go along with any launch
        if len({tensor.device for tensor in tree_leaves((args, kwargs, output)) if _has_dimensions(tensor)}) > 1:
            raise NotCapturable(f"{function} copies between devices")
        return output


def _has_dimensions(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0
