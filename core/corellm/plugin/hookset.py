"""The hooks that one module specifies, and the checks of methods that implement them.

Knows names, arguments and `@hookimpl`; does not know the kind of plugin or what its hooks do.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from corellm.hookspecs import PROJECT_NAME

_IMPL, _SPEC = f"{PROJECT_NAME}_impl", f"{PROJECT_NAME}_spec"


class HookSet:
    """The hooks of a module.

    Args:
        specs: the module, whose hooks are marked by pluggy's `HookspecMarker`.
        old_names: `{old name: name}` of hooks that may still have their old name.
    """

    def __init__(self, specs: ModuleType, old_names: Mapping[str, str] | None = None) -> None:
        self._specs = specs
        self.old_names = old_names or {}
        self.names = frozenset(name for name, member in vars(specs).items() if hasattr(member, _SPEC))

    def arguments(self, hook: str) -> list[str]:
        """The names of a hook's arguments."""
        return list(inspect.signature(getattr(self._specs, hook)).parameters)

    def options(self, hook: str) -> Mapping[str, Any]:
        """The options of a hook's specification; empty if there is no such hook."""
        options: Mapping[str, Any] = getattr(getattr(self._specs, hook, None), _SPEC, {})
        return options

    def find_problem(self, plugin: object, name: str) -> str | None:
        """Return what is wrong with a plugin's method, or None.

        Args:
            plugin: a class, if its instances get registered; else the module or object itself.
            name: of the method.
        """
        if hookimpl_options(plugin, name) is None:
            return (
                f"{name} has a hook's name but lacks @hookimpl, so it would never be called; add the decorator "
                f"(from corellm.hookspecs import hookimpl; below @staticmethod where there is one) or rename the method"
            )
        hook = self.old_names.get(name, name)
        if hook not in self.names:
            return f"{name} is no hook{did_you_mean(name, self.names)}"
        known = self.arguments(hook)
        for argument, parameter in method_parameters(plugin, name).items():
            if argument not in known:
                takes = ", ".join(known) or "no arguments"
                return f"{name} has no argument {argument!r}{did_you_mean(argument, known)}; it may take {takes}"
            if parameter.default is not parameter.empty or parameter.kind is parameter.KEYWORD_ONLY:
                return (
                    f"{name} would never be given {argument!r}, which has a default or is keyword-only; make it an "
                    f"ordinary argument"
                )
        return None


def hookimpl_options(plugin: object, name: str) -> Mapping[str, Any] | None:
    """The options that `@hookimpl` gave a method; None if it is not marked. Properties are not evaluated."""
    member = inspect.getattr_static(plugin, name)
    function = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
    options: Mapping[str, Any] | None = getattr(function, _IMPL, None)
    return options


def is_static(plugin: object, name: str) -> bool:
    """Whether a class's method takes no `self`."""
    return isinstance(inspect.getattr_static(plugin, name), (staticmethod, classmethod))


def method_parameters(plugin: object, name: str) -> dict[str, inspect.Parameter]:
    """The parameters of a method by name, `self` left out."""
    parameters = list(inspect.signature(getattr(plugin, name)).parameters.items())
    has_self = inspect.isclass(plugin) and not is_static(plugin, name)
    return dict(parameters[1:] if has_self else parameters)


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """`; did you mean '...'?` with the known name most like an unknown one; empty if none is like it by `cutoff`."""
    found = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"; did you mean {found[0]!r}?" if found else ""
