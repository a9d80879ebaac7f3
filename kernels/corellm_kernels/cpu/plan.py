"""A decode step as a recorded plan, what a CUDA graph is on GPUs: the calls of kernels and torch that the step made.

The step runs once, and its calls are noted with the memory that they read and write. A replay makes the same calls on
the same memory: kernels that follow each other in one call of the library, torch's functions one by one between them.
No Python of the model runs again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import Array, Structure
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from corellm.attention.graph import NotCapturable
from corellm_kernels.cpu.arguments import Call
from corellm_kernels.cpu.library import recording, run
from corellm_kernels.cpu.memory import PlanMemory

_READS = "reads a value of the step"
_REFUSED = {
    torch.Tag.data_dependent_output: _READS,
    torch.Tag.dynamic_output_shape: "has an output whose shape depends on values",
}
_READERS = {
    getattr(Tensor, name)
    for name in ("item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__", "__dlpack__")
}
"""What gives values to Python; torch's dispatcher does not see all of it."""


class RecordedPlan:
    """See `corellm.attention.graph.Graph`.

    Args:
        memory: for intermediate results.
    """

    asynchronous = False

    def __init__(self, memory: PlanMemory) -> None:
        self._memory = memory
        self._parts: list[Callable[[], None]] = []
        self._kept: list[Any] = []

    def capture(self, step: Callable[[], Tensor]) -> Tensor:
        """See `Graph.capture`. The step runs once, and its result counts."""
        recorder = _Recorder(self._memory)
        with recorder.recording():
            output = step()
        self._parts, self._kept = recorder.parts(), [recorder.kept, output]
        return output

    def replay(self) -> None:
        """See `Graph.replay`."""
        for part in self._parts:
            part()


class _NoReads(TorchFunctionMode):  # type: ignore[no-untyped-call]
    """Refuses functions that give values to Python."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _READERS:
            raise NotCapturable(f"{resolve_name(function)} {_READS}")
        return function(*args, **(kwargs or {}))


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes kernels and torch's functions in the order in which they ran; refuses what reads values."""

    def __init__(self, memory: PlanMemory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memory = memory
        self.kept: list[Any] = []
        """What the calls point to, outside the shared memory."""
        self._done: list[Call | Callable[[], None]] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Note what this thread does inside the block."""
        recording.recorder = self
        try:
            with _NoReads(), self:
                yield
        finally:
            recording.recorder = None

    def add(self, call: Call, given: Structure, tensors: tuple[Tensor | None, ...]) -> None:
        """Note a kernel."""
        self.kept.append((given, [x for x in tensors if x is not None and not self.memory.owns(x)]))
        self._done.append(call)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tag in function.tags:
            if tag in _REFUSED and not _indexes_by_numbers(function, args):
                raise NotCapturable(f"{function} {_REFUSED[tag]}")
        before = torch.get_rng_state() if torch.Tag.nondeterministic_seeded in function.tags else None
        output = function(*args, **kwargs)
        # dropout in inference is of this kind, too
        if before is not None and (kwargs.get("generator") or not torch.equal(before, torch.get_rng_state())):
            raise NotCapturable(f"{function} draws random numbers")
        if function is torch.ops.aten.lift_fresh.default:  # a constant, which the step may write to
            self._done.append(partial(output.copy_, output.clone()))
            return output
        if not str(function).startswith(("aten.empty", "aten.new_empty")):
            given = {x.untyped_storage().data_ptr() for x in _tensors((args, kwargs))}
            fresh = [x.untyped_storage().data_ptr() not in given for x in _tensors(output)]
            if any(fresh) or function._schema.is_mutable:  # not only a view
                if all(fresh):
                    output = tree_map_only(Tensor, self.memory.moved, output)
                args, kwargs, results = tree_map_only(Tensor, self._unowned, (args, kwargs, [*_tensors(output)]))
                self._done.append(_again(function, args, kwargs, results, fresh))
        return output

    def _unowned(self, tensor: Tensor) -> Tensor:
        """Return a tensor in the same memory that can be kept: shared memory goes on to the next owner."""
        return self.memory.alias(tensor) if self.memory.owns(tensor) else tensor

    def parts(self) -> list[Callable[[], None]]:
        """Return the functions to call for a replay, with kernels that follow each other in one."""
        parts: list[Callable[[], None]] = []
        calls: list[Call] = []
        for done in [*self._done, None]:
            if isinstance(done, Call):
                calls.append(done)
                continue
            if calls:
                parts.append(_run_all((Call * len(calls))(*calls)))
                calls = []
            if done is not None:
                parts.append(done)
        return parts


def _indexes_by_numbers(function: Any, args: Any) -> bool:
    """Whether a function is an index by numbers, whose shape does not depend on them; by masks it would."""
    if function is not torch.ops.aten.index.Tensor:
        return False
    return all(index is None or index.dtype not in (torch.bool, torch.uint8) for index in args[1])


def _run_all(calls: Array[Call]) -> Callable[[], None]:
    return lambda: run(calls, len(calls), "plan")


def _again(function: Any, args: Any, kwargs: Any, results: list[Tensor], fresh: list[bool]) -> Callable[[], None]:
    """Return a function that calls torch's again and writes fresh results to where they were."""
    if fresh == [True]:
        if function in (torch.ops.aten._to_copy.default, torch.ops.aten.clone.default):
            return partial(results[0].copy_, args[0])
        if (into := _writing(function)) is not None:
            return partial(into, *args, **kwargs, out=results[0])

    def again() -> None:
        for old, new, is_fresh in zip(results, _tensors(function(*args, **kwargs)), fresh, strict=True):
            if is_fresh:
                old.copy_(new)

    return again


@cache
def _writing(function: Any) -> Any:
    """Return the form of one of torch's functions that takes the same and writes to `out`; None if there is none."""
    takes = [(one.name, str(one.type)) for one in function._schema.arguments]
    for name in function.overloadpacket.overloads():
        form = getattr(function.overloadpacket, name)
        rest = [(one.name, str(one.type)) for one in form._schema.arguments if not one.is_out]
        if rest == takes and any(one.is_out and one.name == "out" for one in form._schema.arguments):
            return form
    return None


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
