"""Extensions: loaded once per process, and asked so that whoever fails or answers nonsense is named.

Knows entry points, pluggy and the names of the hooks; what they are for is `extensions`' business.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from corellm import extensions as specs
from corellm.contract import near
from corellm.errors import BrokenPluginError, ContractError, PluginError, own_traceback
from corellm.hookspecs import PROJECT_NAME

EXTENSIONS_GROUP = "corellm.extensions"
_HOOKS = frozenset(name for name, member in vars(specs).items() if hasattr(member, f"{PROJECT_NAME}_spec"))


@dataclass(frozen=True)
class ExtensionEntry:
    """An extension that an installed distribution names."""

    distribution: str
    version: str
    name: str
    entry_point: EntryPoint

    def load(self) -> object:
        """Import the extension, and make it if it is a class.

        Raises:
            BrokenPluginError: that failed; says how to remove it.
            ContractError: it implements a hook that does not exist.
        """
        where = f"the extension {self.name!r} of {self.distribution}"
        way_out = f"repair it, or remove it: pip uninstall {self.distribution}"
        try:
            extension = self.entry_point.load()
            extension = extension() if inspect.isclass(extension) else extension
        except Exception as error:
            raise BrokenPluginError(
                f"{where} {self.version} cannot be imported: {type(error).__name__}: {error}\n"
                f"{own_traceback(error)}{way_out}"
            ) from error
        for name, member in inspect.getmembers(extension, callable):
            if not hasattr(member, f"{PROJECT_NAME}_impl"):
                if name in _HOOKS:
                    raise ContractError(f"{where}: {name} has a hook's name but lacks @hookimpl; {way_out}")
                continue
            if name not in _HOOKS:
                raise ContractError(f"{where}: {name} is no hook of extensions{near(name, _HOOKS)}; {way_out}")
            known = inspect.signature(getattr(specs, name)).parameters
            for argument in inspect.signature(member).parameters:
                if argument not in known:
                    takes = ", ".join(known) or "no arguments"
                    raise ContractError(f"{where}: {name} has no argument {argument!r}; it may take {takes}; {way_out}")
        return extension


def installed_extensions() -> list[ExtensionEntry]:
    """Every extension of every installed distribution; nothing is imported."""
    found: dict[tuple[str, str], ExtensionEntry] = {}
    for entry in entry_points(group=EXTENSIONS_GROUP):
        distribution, version = (entry.dist.name, entry.dist.version) if entry.dist is not None else (entry.value, "?")
        # a distribution seen twice on sys.path is still one
        found.setdefault((distribution, entry.name), ExtensionEntry(distribution, version, entry.name, entry))
    return list(found.values())


@cache
def load_extensions() -> pluggy.PluginManager:
    """The manager of every installed extension, loaded once per process.

    Raises:
        BrokenPluginError, ContractError: of the first that cannot be loaded.
    """
    manager = pluggy.PluginManager(PROJECT_NAME)
    manager.add_hookspecs(specs)
    for entry in installed_extensions():
        manager.register(entry.load(), name=f"the extension {entry.name!r} of {entry.distribution}")
    return manager


def ask_extensions(
    hook: str,
    expected: Callable[[Any], bool],
    *,
    manager: pluggy.PluginManager | None = None,
    on_failure: Callable[[PluginError], None] | None = None,
    **arguments: Any,
) -> Iterator[tuple[str, Any]]:
    """What extensions answer to a hook, in pluggy's order: the last one installed first, `trylast` after all others.

    Args:
        hook: its name.
        expected: whether an answer is what the hook wants.
        manager: whose extensions; None for those installed.
        on_failure: called with the error of an extension that fails, to go on with the others; None to raise it.
        arguments: all that the hook has.

    Yields:
        What the extension is called, and its answer, if that is not None.

    Raises:
        BrokenPluginError: an extension raised an error.
        ContractError: its answer is not what is expected.
    """
    caller: pluggy.HookCaller = getattr((manager or load_extensions()).hook, hook)
    for implementation in reversed(caller.get_hookimpls()):
        name = implementation.plugin_name
        if name.isdigit():  # registered without one, by somebody of this process
            name = f"the extension {type(implementation.plugin).__qualname__}"
        try:
            answer = _answer(name, implementation, hook, expected, arguments)
        except PluginError as error:
            if on_failure is None:
                raise
            on_failure(error)
            continue
        if answer is not None:
            yield name, answer


def _answer(
    name: str, implementation: pluggy.HookImpl, hook: str, expected: Callable[[Any], bool], arguments: dict[str, Any]
) -> Any:
    try:
        answer = implementation.function(*(arguments[argument] for argument in implementation.argnames))
    except PluginError:
        raise
    except Exception as error:
        raise BrokenPluginError(
            f"{name}: {hook} failed: {type(error).__name__}: {error}\n{own_traceback(error)}repair it, or uninstall it"
        ) from error
    if answer is not None and not expected(answer):
        wanted = inspect.signature(getattr(specs, hook)).return_annotation
        raise ContractError(f"{name}: {hook} must return {wanted}, not {type(answer).__name__} {answer!r:.60}")
    return answer
