"""Imports of torch and transformers that can wait: torch's compiler, shapes of symbols, sympy, scipy, scikit-learn.

transformers' modelling imports each of these for decorators or for a function that no run here calls; torch's sharded
tensors, which it imports, too, import shapes of symbols and with them sympy; the hub's client imports trio. torch
imports its compiler when a model is made on the meta device, and the first time a plan is recorded; its operations
there ask for shapes of symbols, too.
While a model is loaded, stand-ins are in `sys.modules` instead. A stand-in gives the functions that transformers and
torch are known to import, and these import the module when they are called, unless no symbol is in what they are asked;
any other attribute imports it at once. Once a module is imported, it replaces its stand-in in every module that holds
that. transformers reads all its source files for the names in them, and again when its models are imported: what it
found is kept from then on, where this was here first.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, lru_cache, partial, wraps
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from operator import eq
from threading import RLock
from types import FunctionType, ModuleType
from typing import Any

_COMPILER, _SHAPES, _SYMPY = "torch._dynamo", "torch.fx.experimental.symbolic_shapes", "sympy"
_WITHOUT_SYMBOLS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("expect_true", "guard_or_false", "guard_or_true", "statically_known_true"), lambda x, *_: x),
    **dict.fromkeys(("guard_size_oblivious", "guarding_hint_or_throw"), lambda x: x),
    "has_guarding_hint": lambda x: True,
    "is_nested_int": lambda x: False,
    "sym_and": lambda *terms: all(terms),
    "sym_eq": eq,
    "sym_or": lambda *terms: any(terms),
}
"""What functions for shapes of symbols answer where there are no symbols, as in operations on the meta device."""
_FUNCTIONS: dict[str, tuple[str, ...]] = {
    _COMPILER: (),
    "torch._dynamo._trace_wrapped_higher_order_op": ("TransformGetItemToIndex",),
    _SHAPES: ("GuardOnDataDependentSymNode", *_WITHOUT_SYMBOLS),
    _SYMPY: (),
    "scipy.optimize": ("linear_sum_assignment",),
    "sklearn.metrics": ("roc_curve",),
    "trio": (),
}
"""The modules that have stand-ins, and the functions that transformers and torch import from each."""
_IMPORTERS = (
    "transformers.generation.candidate_generator",
    "transformers.generation.utils",
    "transformers.loss.loss_utils",
    "transformers.masking_utils",
    "transformers.modeling_utils",
)
"""The modules of transformers that import them, whatever the model."""

_SCANNING, _SCAN = "transformers.utils.import_utils", "create_import_structure_from_path"
"""The module of transformers, and its function that reads the sources of one of 560 folders and keeps 128 results."""
_lock = RLock()
"""Held while stand-ins come and go; not while a module is imported."""


class _StandIn(ModuleType):
    """A module that is not imported yet."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)  # `find_spec` tells by it that the module is there
        self.__path__: list[str] = []  # as that of a package: `_Finder` finds what is in it
        self._given: dict[str, Any] = {function: self._calling(function) for function in _FUNCTIONS[name]}
        self.__dict__.update(self._given)

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
        self.leave()
        return importlib.import_module(self.__name__)

    def leave(self) -> None:
        """Leave the module's place, if this is in it."""
        with _lock:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]

    def give_way(self, module: ModuleType) -> None:
        """Put the module, and what it has, where modules hold this and what this gave."""
        real = {id(given): getattr(module, name) for name, given in self._given.items() if hasattr(module, name)}
        real[id(self)] = module
        for holder in list(sys.modules.values()):
            held = vars(holder) if isinstance(holder, ModuleType) else {}
            held.update({name: real[id(value)] for name, value in list(held.items()) if id(value) in real})


class _Compiler(_StandIn):
    """A stand-in for torch's compiler. What its decorators mark is marked when the compiler comes in."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._given = {
            "disable": self._disable,
            "allow_in_graph": partial(self._mark, "allow_in_graph"),
            "assume_constant_result": partial(self._mark, "assume_constant_result"),
        }
        self.__dict__.update(self._given)
        self._later: list[Callable[[ModuleType], object]] = []
        """Calls that wait for the compiler: each marks one function."""

    def _disable(self, fn: Any = None, recursive: bool = True, **how: Any) -> Any:
        """Return a function that the compiler does not compile; before it is imported, nothing is compiled."""
        if fn is None:
            return partial(self._disable, recursive=recursive, **how)
        own: list[Any] = []

        @wraps(fn, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            return (own[0] if own else fn)(*args, **kwargs)

        def replace(compiler: ModuleType) -> None:
            own.append(compiler.disable(fn, recursive, **how))
            vars(call).update(vars(own[0]))  # by which the compiler knows it

        with _lock:
            if isinstance(fn, FunctionType) and _COMPILER in _waiting:
                self._later.append(replace)
                return call
        return self.module().disable(fn, recursive, **how)

    def _mark(self, mark: str, fn: Any) -> Any:
        """Mark a function for the compiler, once it is imported."""
        with _lock:
            if callable(fn) and _COMPILER in _waiting:
                self._later.append(lambda compiler: getattr(compiler, mark)(fn))
                return fn
        return getattr(self.module(), mark)(fn)

    def give_way(self, module: ModuleType) -> None:
        super().give_way(module)
        for do in self._later:
            do(module)


class _Shapes(_StandIn):
    """A stand-in for shapes of symbols, which answers itself where there are none."""

    def _calling(self, function: str) -> Callable[..., Any]:
        call, plain = super()._calling(function), _WITHOUT_SYMBOLS.get(function)

        def answer(*args: Any, **kwargs: Any) -> Any:
            return plain(*args) if plain is not None and _is_plain(args) else call(*args, **kwargs)

        return answer


def _is_plain(shape: Any) -> bool:
    return type(shape) in (bool, int) or (isinstance(shape, tuple) and all(map(_is_plain, shape)))


class _Sympy(_StandIn):
    """A stand-in for sympy, of which torch asks whether something is an expression."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._given = {"Basic": type("Basic", (), {})}
        self.__dict__.update(self._given)


class _Imported(Loader):
    """A loader that gives a module which its package has imported already, as it is."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own specification back, which importing has replaced."""
        vars(module)["__spec__"] = self._spec


class _Finder:
    """A finder of modules that have, or are in, a stand-in's place."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module is, with a loader that ends its stand-in's time; None for any other module."""
        package = sys.modules.get(name.rpartition(".")[0])
        if isinstance(package, _StandIn):
            path = getattr(package.module(), "__path__", ())
            if name in sys.modules:
                return ModuleSpec(name, _Imported(sys.modules.pop(name)))
        elif name not in _waiting and name != _SCANNING:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None or name not in (*_waiting, _SCANNING):
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if name == _SCANNING and isinstance(scan := getattr(module, _SCAN, None), type(lru_cache(eq))):
                setattr(module, _SCAN, cache(scan.__wrapped__))  # of older releases there is none
            with _lock:
                stand_in = _waiting.pop(name, None)
            if stand_in is not None:
                stand_in.give_way(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # a loader is one module's
        return spec


_MAKERS: dict[str, Callable[[str], _StandIn]] = {_COMPILER: _Compiler, _SHAPES: _Shapes, _SYMPY: _Sympy}
_waiting: dict[str, _StandIn] = {}
"""The stand-ins whose modules are not imported, in their places or not."""
_finder = _Finder()


@contextmanager
def deferring() -> Iterator[None]:
    """Have stand-ins in the places of those modules that were not imported before."""
    with _lock:
        for name in _FUNCTIONS:
            if name not in sys.modules and name not in _waiting and find_spec(name.partition(".")[0]) is not None:
                _waiting[name] = _MAKERS.get(name, _StandIn)(name)
        here = {name: stand_in for name, stand_in in _waiting.items() if name not in sys.modules}
        sys.modules.update(here)
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
    try:
        yield
    finally:
        for stand_in in here.values():
            stand_in.leave()


def import_deferring() -> None:
    """Import what every model of transformers imports, with stand-ins for what can wait."""
    with deferring():
        for module in _IMPORTERS:
            with suppress(ImportError):  # by another name in other versions: then all is imported, later
                importlib.import_module(module)
