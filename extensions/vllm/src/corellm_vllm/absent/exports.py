"""What a module of this package offers, loaded when it is first used, and a typed error for every other name.

Knows modules, and no name of any.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from corellm.errors import AbsentNameError, install_hint
from corellm.known_fields import Absent
from corellm_vllm.absent.names import MODULES, NAMES
from corellm_vllm.absent.table import way_out

ROOT = "corellm_vllm"


def exports(module: str, homes: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module.

    Args:
        module: its name.
        homes: where its names come from, `module` or `module:name`; those that it defines itself are left out.
    """
    known = homes or {}

    def find(name: str) -> Any:
        """Return what has the name.

        Raises:
            AbsentNameError: there is none; it is an ImportError, because `from module import name` loses the message of
                an AttributeError.
            AttributeError: the same, of a name with underscores, for which Python's own protocols ask.
        """
        if name in known:
            home, _, own = known[name].partition(":")
            try:
                value = getattr(importlib.import_module(home), own or name)
            except ModuleNotFoundError as error:
                folder = home.removeprefix("corellm_").partition(".")[0]
                raise AbsentNameError(f"{name} comes with {install_hint(folder)}") from error
            setattr(sys.modules[module], name, value)
            return value
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        if PathFinder.find_spec(f"{module}.{name}", getattr(sys.modules[module], "__path__", [])) is not None:
            return importlib.import_module(f"{module}.{name}")
        raise _absent(module, name)

    return find


class AbsentModules(MetaPathFinder):
    """Refuses modules that this package does not have. The last finder: it is asked for what no other one found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return None for modules of other packages.

        Raises:
            AbsentNameError: a module of this one.
        """
        package, _, name = fullname.rpartition(".")
        if f"{package}.".startswith(f"{ROOT}.") and not name.startswith("_"):
            raise _absent(package, name)
        return None


def _absent(module: str, name: str) -> AbsentNameError:
    path = f"{module}.{name}".removeprefix(f"{ROOT}.")
    table: Mapping[str, Absent] = {name: MODULES[path]} if path in MODULES else NAMES
    there = vars(sys.modules[module])
    modules = [found.name for found in iter_modules(there.get("__path__"), "")] if "__path__" in there else []
    return AbsentNameError(f"{module} has no {name}{way_out(name, table, [*there.get('__all__', ()), *modules])}")
