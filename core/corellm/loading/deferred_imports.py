"""Imports of transformers that can wait: scikit-learn and scipy, a third of what it imports.

transformers imports each for one function, of assisted generation and of training for object detection. Here such a
function imports its module when it is called.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_DEFERRED = (
    ("transformers.generation.candidate_generator", "sklearn.metrics", "roc_curve"),
    ("transformers.loss.loss_utils", "scipy.optimize", "linear_sum_assignment"),
)
"""A module of transformers, what it and those behind it import, and the function that they take from there."""


class _Deferred(ModuleType):
    """A stand-in for a module: one function imports the module when it is called, any other name at once."""

    def __init__(self, name: str, function: str) -> None:
        super().__init__(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            return getattr(self._module(), function)(*args, **kwargs)

        setattr(self, function, call)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # `inspect` asks all modules for theirs
            raise AttributeError(name)
        return getattr(self._module(), name)

    def _module(self) -> ModuleType:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)


def import_deferring() -> None:
    """Import those modules of transformers, each without what it imports, unless that was imported before."""
    for module, name, function in _DEFERRED:
        if name in sys.modules or find_spec(name.partition(".")[0]) is None:
            continue
        sys.modules[name] = deferred = _Deferred(name, function)
        try:
            with suppress(ImportError):  # by another name in other versions: then all is imported, later
                importlib.import_module(module)
        finally:
            if sys.modules.get(name) is deferred:
                del sys.modules[name]
