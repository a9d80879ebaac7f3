"""Imports of torch and transformers that can wait: torch's compiler, scipy, scikit-learn; a third of them all.

What transformers' models import at once takes each of these for a decorator or for a function that no run here calls.
So stand-ins are in their places. A function that is known imports its module when it is called, any other name at once.
When a module comes in at last, by whoever asks for it, what its stand-in gave gives way to it.

The compiler's stand-ins stay in their places, since torch itself asks for the compiler when a model is first made.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, wraps
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import FunctionType, ModuleType
from typing import Any

_COMPILER = "torch._dynamo"
_FUNCTIONS = {
    _COMPILER: (),
    "torch._dynamo._trace_wrapped_higher_order_op": ("TransformGetItemToIndex",),
    "scipy.optimize": ("linear_sum_assignment",),
    "sklearn.metrics": ("roc_curve",),
}
"""What stand-ins are for, and the functions that are taken from there and called later or never."""
_IMPORTERS = ("transformers.generation.candidate_generator", "transformers.loss.loss_utils")
"""What imports all but the compiler, in every model of transformers."""


class _StandIn(ModuleType):
    """A module that is not imported yet."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._functions = {function: self._calling(function) for function in _FUNCTIONS[name]}
        self.__dict__.update(self._functions)

    def _calling(self, function: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return getattr(self.module(), function)(*args, **kwargs)

        return call

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # `inspect` asks all modules for theirs
            raise AttributeError(name)
        return getattr(self.module(), name)

    def module(self) -> ModuleType:
        """Return the module itself, imported."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)

    def give_way(self, module: ModuleType) -> None:
        """Put the module, and what it has, where modules hold what this gave."""
        real = {id(self): module}
        real |= {id(given): getattr(module, name) for name, given in self._functions.items() if hasattr(module, name)}
        for holder in list(sys.modules.values()):
            held = vars(holder) if isinstance(holder, ModuleType) else {}
            held.update({name: real[id(value)] for name, value in list(held.items()) if id(value) in real})


class _Compiler(_StandIn):
    """A stand-in for torch's compiler, whose decorators tell it what to leave alone: once it is there."""

    def __init__(self) -> None:
        super().__init__(_COMPILER)
        self.__path__: list[str] = []  # it is a package, and `_Finder` finds what is in it
        self._marked: list[tuple[str, Any]] = []

    def disable(self, function: Any = None, recursive: bool = True, **how: Any) -> Any:
        """Return a function that runs as it is while nothing can be compiled, then as the compiler's own."""
        if function is None:
            return partial(self.disable, recursive=recursive, **how)
        if not isinstance(function, FunctionType):
            return self.module().disable(function, recursive, **how)
        disabled: list[Any] = []

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _COMPILER in _waiting:
                return function(*args, **kwargs)
            if not disabled:
                disabled.append(self.module().disable(function, recursive, **how))
            return disabled[0](*args, **kwargs)

        # by which the compiler knows that it is not to look into it
        vars(call).update(_torchdynamo_disable=True, _torchdynamo_orig_callable=function)
        return call

    def allow_in_graph(self, function: Any) -> Any:
        """Note what the compiler is to take as one operation."""
        self._marked.append(("allow_in_graph", function))
        return function

    def assume_constant_result(self, function: Any) -> Any:
        """Note what the compiler is to call but once."""
        self._marked.append(("assume_constant_result", function))
        return function

    def give_way(self, module: ModuleType) -> None:
        super().give_way(module)
        for mark, function in self._marked:
            getattr(module, mark)(function)


class _Imported(Loader):
    """A loader of a module that came in with its package, after the package's stand-in was asked for it."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module that is there."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own specification back, which importing has replaced; it was executed."""
        vars(module)["__spec__"] = self._spec


class _Finder:
    """A finder of modules that have a stand-in, which gives way once its module was executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module is, with a loader that ends the stand-in's time; None if it has no stand-in."""
        package = sys.modules.get(name.rpartition(".")[0])
        if isinstance(package, _StandIn):
            path = package.module().__path__
            if name in sys.modules:
                return ModuleSpec(name, _Imported(sys.modules.pop(name)))
        elif name not in _waiting:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None or name not in _waiting:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if (stand_in := _waiting.pop(name, None)) is not None:
                stand_in.give_way(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # a loader is one module's
        return spec


_waiting: dict[str, _StandIn] = {}
"""The stand-ins whose modules are not imported."""
_finder = _Finder()


def import_deferring() -> None:
    """Import what asks for those modules that were not imported before, each without them."""
    stand_ins = {
        name: _Compiler() if name == _COMPILER else _StandIn(name)
        for name in _FUNCTIONS
        if name not in sys.modules and name not in _waiting and find_spec(name.partition(".")[0]) is not None
    }
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _waiting.update(stand_ins)
    sys.modules.update(stand_ins)
    try:
        for module in _IMPORTERS:
            with suppress(ImportError):  # by another name in other versions: then all is imported, later
                importlib.import_module(module)
    finally:
        for name, stand_in in stand_ins.items():
            if sys.modules.get(name) is stand_in and not name.startswith(_COMPILER):
                del sys.modules[name]
