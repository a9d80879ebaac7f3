"""The contract that adapters keep: the versions this corellm understands, and what an adapter class must be like.

Knows what `hookspecs` states, and how adapters of the version before are called: a renamed hook keeps its old name for
one version, with a warning. Does not know distributions' metadata.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Set
from types import ModuleType
from typing import Any

import pluggy

from corellm import hookspecs
from corellm.errors import ContractError
from corellm.hookspecs import PROJECT_NAME
from corellm.plugin.attributes import attribute, check_names, check_values, ways_to_give
from corellm.plugin.hookset import HookSet, hookimpl_options, is_static, method_parameters


class Contract:
    """What one version of corellm demands of adapters.

    Args:
        specs: the module of hook specifications, with the constants that `hookspecs` has.

    Attributes:
        version: the newest contract version understood.
        supported: all versions understood.
        hooks: the names of the hooks.
    """

    def __init__(self, specs: ModuleType) -> None:
        self._specs = specs
        self._renamed: Mapping[str, str] = specs.RENAMED_HOOKS
        self._hookset = HookSet(specs, self._renamed)
        self.version: int = specs.CONTRACT_VERSION
        self.supported = range(specs.OLDEST_CONTRACT_VERSION, self.version + 1)
        self.hooks = self._hookset.names
        self._warned: set[str] = set()

    def make_manager(self) -> pluggy.PluginManager:
        """Make a manager that knows the hooks, renamed ones under both names."""
        manager = _Manager(PROJECT_NAME, self._renamed)
        manager.add_hookspecs(self._specs)
        return manager

    # --- adapters -----------------------------------------------------------------------------------------------------

    def check_adapter(self, adapter: type[Any], distribution: str) -> None:
        """Check an adapter class; warn of what the next version will refuse.

        Raises:
            ContractError: unsupported version, a hook without `@hookimpl`, an unknown hook or argument, a wrong or
                misspelt attribute, or something required is missing.
        """
        versions = contract_versions(adapter)
        if not set(versions) & set(self.supported):
            newer = versions[0] > self.version
            raise ContractError(
                f"{distribution} speaks contract {_spoken(versions)}, this corellm speaks {_spoken(self.supported)}; "
                + ("upgrade corellm" if newer else f"upgrade {distribution}")
            )
        where = f"{distribution}: {adapter.__qualname__}"
        implemented = self._check_methods(adapter, versions, where)
        current = {self._renamed.get(name, name) for name in implemented}
        check_names(adapter, self.hooks, current, where)
        check_values(adapter, where)
        self._check_required(adapter, current, where)
        try:
            inspect.signature(adapter).bind("the context")
        except TypeError as error:
            raise ContractError(f"{where} must be made from one argument, __init__(self, context)") from error
        for name in implemented:
            self.warn_of(adapter, name, f"{where}.{name}")

    def _check_methods(self, adapter: type[Any], versions: range, where: str) -> list[str]:
        """Check the methods; return the names of those that implement hooks."""
        old_names = self._renamed if versions[0] < self.version else {}
        # in an adapter of older versions only, a method with a new name is its own
        names = self.hooks if self.version in versions else self.hooks - set(self._renamed.values())
        methods = [name for name, _ in inspect.getmembers(adapter, inspect.isroutine)]
        implemented = [name for name in methods if hookimpl_options(adapter, name) is not None]
        for name in methods:
            if name not in implemented and name not in names | old_names.keys():
                continue
            problem = self._hookset.find_problem(adapter, name)
            if problem is not None:
                raise ContractError(f"{where}.{problem}")
            if name in self._renamed.keys() - old_names.keys():
                raise ContractError(
                    f"{where}.{name}: contract {self.version} calls this hook {self._renamed[name]}; rename the method"
                )
            if old_names.get(name) in implemented:
                raise ContractError(
                    f"{where} has {name} and {old_names[name]}, the old and the new name of one hook; keep the new one"
                )
            if old_names.get(name, name) in self._specs.STATIC_HOOKS and not is_static(adapter, name):
                raise ContractError(f"{where}.{name} must be a @staticmethod: it is called before the adapter is made")
        return implemented

    def _check_required(self, adapter: type[Any], implemented: Set[str], where: str) -> None:
        """Check that an adapter has every required hook, and every required attribute or a hook instead.

        One that takes text alone has no items, and needs none of them.
        """
        if attribute(adapter, "supported_mm_limits") == {}:
            return
        missing = [name for name in self._specs.REQUIRED_HOOKS if name not in implemented]
        if missing:
            raise ContractError(f"{where} lacks the required hook(s) {', '.join(missing)}")
        for name, hooks in self._specs.REQUIRED_ATTRIBUTES.items():
            if attribute(adapter, name) is None and not implemented & set(hooks):
                raise ContractError(f"{where} lacks {ways_to_give(name, hooks)}")

    def static_hook(self, adapter: type[Any], hook: str) -> Callable[[], Any] | None:
        """Return the method of an adapter's class that implements one of `STATIC_HOOKS`, or None."""
        names = [hook, *(old for old, new in self._renamed.items() if new == hook)]
        return next((getattr(adapter, n) for n in names if hasattr(adapter, n) and hookimpl_options(adapter, n)), None)

    def check_wrapper(self, wrapper: object, where: str) -> None:
        """Check an extension's object that wraps an adapter's hooks; it cannot replace them.

        Raises:
            ContractError: it has no wrapper, a method is none, or the hook is called on the adapter's class.
        """
        wrappers = {name: o for name, _ in inspect.getmembers_static(wrapper) if (o := hookimpl_options(wrapper, name))}
        if not wrappers:
            raise ContractError(f"{where}: it wraps nothing: no method has hookimpl(wrapper=True)")
        for name, options in wrappers.items():
            hook = self._renamed.get(name, name)
            if hook in self._specs.STATIC_HOOKS:
                raise ContractError(
                    f"{where}.{name} would never be called: {hook} is called on the adapter's class, before there is a "
                    f"model to extend"
                )
            if not options["wrapper"]:
                raise ContractError(f"{where}.{name} must be a wrapper: hookimpl(wrapper=True), with a yield")
            problem = self._hookset.find_problem(wrapper, name)
            if problem is not None:
                raise ContractError(f"{where}.{problem}")
            self.warn_of(wrapper, name, f"{where}.{name}")

    # --- deprecation --------------------------------------------------------------------------------------------------

    def warn_of(self, plugin: object, name: str, where: str) -> None:
        """Warn of a method with an old name, or whose hook or arguments are deprecated."""
        hook = self._renamed.get(name, name)
        if hook != name:
            warning = FutureWarning(
                f"{hook} is this hook's name since contract {self.version}; with contract {self.version + 1} {name} "
                f"will no longer be called. Upgrade the plugin; its author: rename the method, and declare "
                f"contract = {self.version}"
            )
            self._warn(warning, plugin, name, where)
        options = self._hookset.options(hook)
        if options.get("warn_on_impl"):
            self._warn(options["warn_on_impl"], plugin, name, where)
        for argument, warning in (options.get("warn_on_impl_args") or {}).items():
            if argument in method_parameters(plugin, name):
                self._warn(warning, plugin, name, f"{where}, argument {argument!r}")

    def _warn(self, warning: Warning, plugin: object, name: str, where: str) -> None:
        """Warn once per process, at the method's place in its source, where its author has to change it.

        Python forgets what it warned of whenever a filter changes.
        """
        message = f"{where}: {warning}"
        if message in self._warned:
            return
        member = getattr(plugin, name)
        code = inspect.unwrap(getattr(member, "__func__", member)).__code__
        warnings.warn_explicit(message, type(warning), code.co_filename, code.co_firstlineno)
        self._warned.add(message)  # not reached where warnings are errors: then every load fails


class _Manager(pluggy.PluginManager):
    """Registers a method of an old name under the new one, with its options.

    `Contract.warn_of` warns of deprecation, once per distribution; pluggy would warn at every load, and of the core's
    own defaults.
    """

    def __init__(self, project_name: str, renamed: Mapping[str, str]) -> None:
        super().__init__(project_name)
        self._renamed = renamed

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        options = super().parse_hookimpl_opts(plugin, name)
        if options is not None and name in self._renamed:
            options = options.copy()
            options["specname"] = self._renamed[name]
        return options

    def parse_hookspec_opts(self, module_or_class: Any, name: str) -> pluggy.HookspecOpts | None:
        options = super().parse_hookspec_opts(module_or_class, name)
        if options is not None:
            options = options.copy()
            options["warn_on_impl"] = options["warn_on_impl_args"] = None
        return options


CONTRACT = Contract(hookspecs)
"""The contract of this version of corellm."""


def contract_versions(adapter: Any) -> range:
    """The contract versions an adapter declares, as a range.

    Raises:
        ContractError: it declares none, or something that is neither an integer nor a range of step 1.
    """
    declared = getattr(adapter, "contract", None)
    if isinstance(declared, int) and not isinstance(declared, bool):
        return range(declared, declared + 1)
    if isinstance(declared, range) and declared.step == 1 and len(declared):
        return declared
    raise ContractError(
        f"{adapter.__module__}.{adapter.__qualname__} must declare the contract version it was written for, "
        f"`contract = {hookspecs.CONTRACT_VERSION}` or a range; got {declared!r}"
    )


def _spoken(versions: range) -> str:
    return str(versions[0]) if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
