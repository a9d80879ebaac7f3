"""The compiled kernels: which library this processor runs, and calls of it on torch's OpenMP threads.

Knows pointers; knows neither layers nor steps. `CORELLM_CPU_KERNELS` is an instruction set of `build`, the path of a
library (`.so`), or `off`.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from ctypes import Structure, addressof, byref, c_int64, c_void_p, cast, sizeof
from functools import cache
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.profiler import record_function

from corellm.errors import ConfigError
from corellm_kernels.cpu.arguments import ARGUMENTS, Call
from corellm_kernels.cpu.build import BUILT, instruction_sets, is_current, library_path
from corellm_kernels.cpu.memory import PlanMemory

logger = logging.getLogger(__name__)

_SUFFIX = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.int8: "int8"}


class Recorder(Protocol):
    """Takes note of kernels that were launched, and has memory for their results."""

    memory: PlanMemory

    def add(self, call: Call, given: Structure, tensors: tuple[Tensor | None, ...]) -> None:
        """Note one: its call, and the arguments and tensors that the call points to."""
        ...


class _Recording(threading.local):
    recorder: Recorder | None = None


recording = _Recording()
"""The recorder of this thread's launches, if any."""


@cache
def unavailable() -> str | None:
    """Return why there are no kernels; None if there are. The first time, warn that there are none, if any are wanted.

    Raises:
        ConfigError: `CORELLM_CPU_KERNELS` asks for kernels that there are not.
    """
    try:
        _library()
    except OSError as error:
        level = logging.INFO if os.environ.get("CORELLM_CPU_KERNELS") == "off" else logging.WARNING
        logger.log(level, "no compiled kernels for this CPU, torch's are slower: %s", error)
        return str(error)
    return None


def launch(name: str, dtypes: tuple[torch.dtype | str, ...], given: Structure, *tensors: Tensor | None) -> None:
    """Run a kernel on all of torch's threads and wait for it.

    Args:
        name: of the kernel, without its types.
        dtypes: its types; one that torch does not have by its name.
        given: its arguments.
        tensors: what they point to.

    Raises:
        TypeError: there is no such kernel.
    """
    call = Call(kernel(name, dtypes, type(given)), addressof(given))
    run(byref(call), 1, name)
    if recording.recorder is not None:
        recording.recorder.add(call, given, tensors)


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a tensor for what a kernel writes."""
    recorder = recording.recorder
    return torch.empty(shape, dtype=dtype) if recorder is None else recorder.memory.empty(shape, dtype)


def run(calls: object, count: int, name: str) -> None:
    """Run an array of calls one after another; a profile has them under a name."""
    with record_function(f"corellm::{name}") if _is_profiled() else nullcontext():
        _library().corellm_run(calls, count, torch.get_num_threads())


def _is_profiled() -> bool:
    return bool(torch.autograd.profiler._is_profiler_enabled)


def pointer(tensor: Tensor | None) -> int | None:
    """Return a tensor's address."""
    return None if tensor is None else tensor.data_ptr()


@cache
def kernel(name: str, dtypes: tuple[torch.dtype | str, ...], given: type[Structure]) -> int:
    """Return a kernel's address; arguments and errors are those of `launch`."""
    full = "_".join([name, *(dtype if isinstance(dtype, str) else _SUFFIX.get(dtype, str(dtype)) for dtype in dtypes)])
    found: int | None = _library().corellm_kernel(full.encode(), sizeof(given))
    if found is None:
        raise TypeError(f"there is no kernel {full} for {given.__name__} of {sizeof(given)} bytes")
    return found


@cache
def _library() -> ctypes.CDLL:
    """Load the best library.

    Raises:
        OSError: there is none, or none is wanted, with the reason.
        ConfigError: the user asks for one that there is not, or that does not run here.
    """
    wanted = os.environ.get("CORELLM_CPU_KERNELS", "")
    if wanted == "off":
        raise OSError("CORELLM_CPU_KERNELS is off")
    try:
        return _load(_candidates(wanted))
    except (OSError, AttributeError) as error:  # the latter from a library of others
        if wanted:
            raise ConfigError(f"CORELLM_CPU_KERNELS={wanted!r}: {error}; leave it out to have one chosen") from error
        raise


def _load(paths: list[Path]) -> ctypes.CDLL:
    for path in paths:
        library = ctypes.CDLL(str(path))
        if library.corellm_supported():
            _declare(library)
            return library
    raise OSError("not built, or not for this processor")


def _candidates(wanted: str) -> list[Path]:
    """Return the libraries to try, the best first; raises as `_library` does."""
    known = instruction_sets(platform.machine())
    if wanted and wanted not in known:
        if Path(wanted).is_file():
            return [Path(wanted).absolute()]
        raise ConfigError(f"CORELLM_CPU_KERNELS={wanted!r} is not known; known: off, {', '.join(known)}")
    if not is_current():
        state = "older than their sources" if (BUILT / "version").is_file() else "not built"
        raise OSError(f"they are {state}: python -m corellm_kernels.cpu.build needs g++ or clang++")
    return [path for path in map(library_path, [wanted] if wanted else known) if path.is_file()]


def _declare(library: ctypes.CDLL) -> None:
    library.corellm_kernel.argtypes, library.corellm_kernel.restype = [ctypes.c_char_p, c_int64], c_void_p
    for name, given in ARGUMENTS.items():
        if library.corellm_kernel(f"{name}_float32".encode(), sizeof(given)) is None:
            raise OSError(f"{library._name} is of another version: it has no kernel {name} for {given.__name__}")
    library.corellm_run.argtypes, library.corellm_run.restype = [c_void_p, c_int64, c_int64], None
    library.corellm_use.argtypes, library.corellm_use.restype = [c_void_p] * 3, None
    openmp = _openmp()
    if openmp is not None:
        names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        library.corellm_use(*(cast(getattr(openmp, name), c_void_p) for name in names))


def _openmp() -> ctypes.CDLL | None:
    """Return the OpenMP runtime that torch is linked to; LLVM's and Intel's have GNU's functions, too."""
    linked = ctypes.CDLL(torch._C.__file__)  # looks names up in what it is linked to, as well
    if hasattr(linked, "GOMP_parallel"):
        return linked
    logger.warning("no OpenMP runtime behind torch: the compiled kernels run on one thread")
    return None
