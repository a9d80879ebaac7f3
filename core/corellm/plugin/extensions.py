"""Loads installed extensions once per process and calls them one by one, so that an error names the one at fault.

Knows entry points and pluggy; what the hooks are for is in `extension_hooks`.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from corellm.errors import BrokenPluginError, CheckpointError, ConfigError, ContractError, PluginError
from corellm.hookspecs import PROJECT_NAME
from corellm.plugin import extension_hooks
from corellm.plugin.distributions import distribution_of
from corellm.plugin.hookset import HookSet, hookimpl_options
from corellm.plugin.tracebacks import own_traceback

logger = logging.getLogger(__name__)

EXTENSIONS_GROUP = "corellm.extensions"
_HOOKS = HookSet(extension_hooks)


@dataclass(frozen=True)
class ExtensionEntry:
    """An extension that an installed distribution names."""

    distribution: str
    version: str
    name: str
    entry_point: EntryPoint

    @property
    def called(self) -> str:
        """What messages call it."""
        return f"the extension {self.name!r} of {self.distribution}"

    def load(self) -> object:
        """Import the extension, make it if it is a class, and check its hooks.

        Raises:
            BrokenPluginError: the import or the constructor raised; says how to remove it.
            ContractError: a hook does not exist, has other arguments, or is a wrapper.
        """
        way_out = f"repair it, or remove it: pip uninstall {self.distribution}"
        try:
            extension = self.entry_point.load()
            extension = extension() if inspect.isclass(extension) else extension
        except (Exception, SystemExit) as error:
            raise BrokenPluginError(
                f"{self.called} {self.version} cannot be loaded: {type(error).__name__}: {error}\n"
                f"{own_traceback(error)}{way_out}"
            ) from error
        for name, _ in inspect.getmembers_static(extension):
            problem = _find_problem(extension, name)
            if problem is not None:
                raise ContractError(f"{self.called}: {problem}; {way_out}")
        return extension


def _find_problem(extension: object, name: str) -> str | None:
    """Return what is wrong with a member of an extension, or None."""
    if name not in _HOOKS.names and not hasattr(inspect.getattr_static(extension, name), f"{PROJECT_NAME}_impl"):
        return None  # no hook
    options = hookimpl_options(extension, name)
    if options is not None and (options["wrapper"] or options["hookwrapper"]):
        return f"{name} is a wrapper; hooks of extensions are not wrapped, those of adapters are (wrap_adapter)"
    return _HOOKS.find_problem(extension, name)


def installed_extensions() -> list[ExtensionEntry]:
    """Every extension of every installed distribution, sorted by name; nothing is imported."""
    found: dict[tuple[str, str], ExtensionEntry] = {}
    for entry in entry_points(group=EXTENSIONS_GROUP):
        distribution, version = distribution_of(entry)
        # a distribution seen twice on sys.path is still one
        found.setdefault((distribution, entry.name), ExtensionEntry(distribution, version, entry.name, entry))
    return [found[key] for key in sorted(found)]


@cache
def load_extensions() -> pluggy.PluginManager:
    """Return the manager of every installed extension, loaded once per process.

    Raises:
        BrokenPluginError, ContractError: one cannot be loaded.
    """
    return _registered(None)


def load_working_extensions(on_failure: Callable[[PluginError], None]) -> pluggy.PluginManager:
    """Return the manager of those that can be loaded; `on_failure` is called with the errors of the others."""
    return _registered(on_failure)


def _registered(on_failure: Callable[[PluginError], None] | None) -> pluggy.PluginManager:
    manager = pluggy.PluginManager(PROJECT_NAME)
    manager.add_hookspecs(extension_hooks)
    for entry in reversed(installed_extensions()):  # pluggy calls the last one first
        try:
            _register(manager, entry)
        except PluginError as error:
            if on_failure is None:
                raise
            on_failure(error)
    return manager


def _register(manager: pluggy.PluginManager, entry: ExtensionEntry) -> None:
    try:
        manager.register(entry.load(), name=entry.called)
    except (ValueError, pluggy.PluginValidationError) as error:  # e.g. it is registered already
        raise ContractError(f"{entry.called}: {' '.join(str(error).split())}") from error


def call_extensions(
    hook: str,
    expected: Callable[[Any], bool],
    *,
    manager: pluggy.PluginManager | None = None,
    on_failure: Callable[[PluginError], None] | None = None,
    **arguments: Any,
) -> Iterator[tuple[str, Any]]:
    """Call a hook of every extension: by their distributions' names, `tryfirst` before, `trylast` after.

    Args:
        hook: its name.
        expected: whether a result other than None is one that the hook may return.
        manager: of the extensions; None for those installed.
        on_failure: called with the error of an extension that fails, before the next one; None to raise it.
        arguments: all of the hook's.

    Yields:
        What messages call the extension, and its result, if that is not None.

    Raises:
        BrokenPluginError: an extension raised an error.
        ContractError: its result is not what is expected.
    """
    caller: pluggy.HookCaller = getattr((manager or load_extensions()).hook, hook)
    for implementation in reversed(caller.get_hookimpls()):
        name = implementation.plugin_name
        if name.isdigit():  # registered without a name
            name = f"the extension {type(implementation.plugin).__qualname__}"
        try:
            result = _call(name, implementation, hook, expected, arguments)
        except PluginError as error:
            if on_failure is None:
                raise
            on_failure(error)
            continue
        if result is not None:
            yield name, result


def offers_by_name(
    hook: str, expected: Callable[[Any], bool], both: str, **arguments: Any
) -> Iterator[tuple[str, str, Any]]:
    """Call a hook whose results are dicts by name; arguments and errors as of `call_extensions`.

    Args:
        expected: whether a value of such a dict is one that the hook may return.
        both: what two extensions that offer the same name do, for messages: `offer an attention backend`.

    Yields:
        What messages call the extension, a name, and what is offered by it.

    Raises:
        ContractError: two extensions offer the same name.
    """

    def is_dict(result: Any) -> bool:
        return isinstance(result, dict) and all(isinstance(name, str) and expected(one) for name, one in result.items())

    owners: dict[str, str] = {}
    for extension, offered in call_extensions(hook, is_dict, **arguments):
        for name, offer in offered.items():
            if name in owners:
                raise ContractError(f"{extension} and {owners[name]} both {both} {name!r}; uninstall one")
            owners[name] = extension
            yield extension, name, offer


def is_text(value: Any) -> bool:
    """Whether a value is a string."""
    return isinstance(value, str)


def first_result(hook: str, expected: Callable[[Any], bool], **arguments: Any) -> Any:
    """Return the first result of a hook, or None; arguments and errors as of `call_extensions`."""
    for name, result in call_extensions(hook, expected, **arguments):
        logger.info("%s: by %s", hook, name)
        return result
    return None


def _call(
    name: str, implementation: pluggy.HookImpl, hook: str, expected: Callable[[Any], bool], arguments: dict[str, Any]
) -> Any:
    try:
        result = implementation.function(*(arguments[argument] for argument in implementation.argnames))
    except Exception as error:
        if isinstance(error, (CheckpointError, ConfigError)) or type(error).__name__ == "OutOfMemoryError":
            raise  # the operator's to mend; torch's, which the caller reports
        raise BrokenPluginError(
            f"{name}: {hook} failed: {type(error).__name__}: {error}\n{own_traceback(error)}repair it, or uninstall it"
        ) from error
    if result is not None and not expected(result):
        wanted = inspect.signature(getattr(extension_hooks, hook)).return_annotation
        raise ContractError(f"{name}: {hook} must return {wanted}, not {type(result).__name__} {result!r:.60}")
    return result
