"""CUDA graphs: capture, replay, and a check of what cannot be captured.

Callers get their `Graph`s from a factory, so that tests run everything but the capture itself on a CPU.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from corellm.attention.graph import NotCapturable
from corellm.errors import ConfigError, raised_at


class CudaGraph:
    """A CUDA graph.

    Args:
        pool: memory that all graphs of a runner share: `torch.cuda.graph_pool_handle()`.
        stream: on which they are captured, of the runner's own device.
    """

    asynchronous = True

    def __init__(self, pool: Any, stream: torch.cuda.Stream) -> None:
        self._pool, self._stream = pool, stream
        self._graph = torch.cuda.CUDAGraph()

    def capture(self, step: Callable[[], Tensor]) -> Tensor:
        """See `Graph.capture`.

        Runs `step` twice before: once to compile kernels and set up libraries, once to see whether it waits for the
        device. A failed capture cannot be undone: the process could not use the device any more.
        """
        with as_if_capturing():
            step()
            with no_waiting():
                step()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(self._graph, pool=self._pool, stream=self._stream):
                output = step()
        except torch.OutOfMemoryError:
            raise  # `DeviceMemory.explaining` says what to lower
        except Exception as error:
            raise ConfigError(
                f"a CUDA graph cannot be captured: {type(error).__name__}: {error} ({raised_at(error)}); start again "
                f"with enforce_eager=True"
            ) from error
        self.replay()  # a capture computes nothing
        return output

    def replay(self) -> None:
        """See `Graph.replay`."""
        self._graph.replay()


_ONE_AT_A_TIME = threading.RLock()
"""Lock for what changes settings of the whole process."""


@contextmanager
def as_if_capturing() -> Iterator[None]:
    """Make code that asks whether it is being captured see True; raise NotCapturable if it fails."""
    with _ONE_AT_A_TIME:
        before = torch.cuda.is_current_stream_capturing
        torch.cuda.is_current_stream_capturing = lambda: True
        try:
            yield
        except (NotCapturable, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise NotCapturable(f"{type(error).__name__}: {error} ({raised_at(error)})") from error
        finally:
            torch.cuda.is_current_stream_capturing = before


@contextmanager
def no_waiting() -> Iterator[None]:
    """Raise NotCapturable for code that waits for the device, or copies between it and the host."""
    with _ONE_AT_A_TIME:
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Synchronization debug mode")  # a prototype, torch says once
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
    """Reject host-device copies, asynchronous ones too: a replay would read reused memory."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        # numbers are CPU tensors without dimensions; a launch carries their values
        if len({tensor.device for tensor in tree_leaves((args, kwargs, output)) if _has_dimensions(tensor)}) > 1:
            raise NotCapturable(f"{function} copies between devices")
        return output


def _has_dimensions(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0
