"""The rules of the contract as adapters meet them: which versions are spoken, which names and arguments hooks have.

Knows what `hookspecs` states, and how an adapter of the version before is understood: under their old names hooks are
called all the same, for one version, with a warning. Knows nothing of distributions' metadata nor of what hooks do.
"""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

import pluggy

from corellm import hookspecs
from corellm.errors import ContractError
from corellm.hookspecs import PROJECT_NAME

_IMPL, _SPEC = f"{PROJECT_NAME}_impl", f"{PROJECT_NAME}_spec"


class Contract:
    """What one version of corellm demands of adapters.

    Args:
        specs: the module of hook specifications, with the constants that `hookspecs` has.

    Attributes:
        version: the newest contract version spoken.
        supported: all that are.
        hooks: the names of the hooks.
    """

    def __init__(self, specs: ModuleType) -> None:
        self._specs = specs
        self._renamed: Mapping[str, str] = specs.RENAMED_HOOKS
        self.version: int = specs.CONTRACT_VERSION
        self.supported = range(specs.OLDEST_CONTRACT_VERSION, self.version + 1)
        self.hooks = frozenset(name for name, member in vars(specs).items() if hasattr(member, _SPEC))
        self._warned: set[str] = set()

    def make_manager(self) -> pluggy.PluginManager:
        """A manager that knows the hooks, those of the version before by their old names, too."""
        manager = _Manager(PROJECT_NAME, self._renamed)
        manager.add_hookspecs(self._specs)
        return manager

    # --- adapters -----------------------------------------------------------------------------------------------------

    def check_adapter(self, adapter: type[Any], distribution: str) -> None:
        """Check an adapter class as far as that goes without a model; warn of what the next version will refuse.

        Raises:
            ContractError: unsupported version, a hook without `@hookimpl`, an unknown hook or argument, or a required
                hook missing.
        """
        versions = contract_versions(adapter)
        if not set(versions) & set(self.supported):
            newer = versions[0] > self.version
            raise ContractError(
                f"{distribution} speaks contract {_spoken(versions)}, this corellm speaks {_spoken(self.supported)}; "
                + ("upgrade corellm" if newer else f"upgrade the plugin: pip install -U {distribution}")
            )
        whose = f"{distribution}: {adapter.__qualname__}"
        hooks = self._check_methods(adapter, versions, whose)
        try:
            inspect.signature(adapter).bind("the context")
        except TypeError as error:
            raise ContractError(f"{whose} must be made from one argument, __init__(self, context)") from error
        for name, member in hooks.items():
            self.warn_of(name, member, f"{whose}.{name}")

    def _check_methods(self, adapter: type[Any], versions: range, whose: str) -> dict[str, Any]:
        """Check the methods, and give those that are hooks."""
        old_names = self._renamed if versions[0] < self.version else {}
        # to an adapter of older versions only, a new name may be a method of its own
        names = self.hooks if self.version in versions else self.hooks - set(self._renamed.values())
        members = dict(inspect.getmembers(adapter, inspect.isroutine))
        marked = {name: member for name, member in members.items() if hasattr(member, _IMPL)}
        unmarked = sorted((names | old_names.keys()) & members.keys() - marked.keys())
        if unmarked:
            raise ContractError(
                f"{whose}.{unmarked[0]} has a hook's name but lacks @hookimpl, so it would never be called; add the "
                f"decorator (from corellm.hookspecs import hookimpl; below @staticmethod where there is one) or rename "
                f"the method"
            )
        for name, member in marked.items():
            if old_names.get(name) in marked:
                raise ContractError(
                    f"{whose} has {name} and {old_names[name]}, the old and the new name of one hook; keep the new one"
                )
            self._check_hook(adapter, name, member, f"{whose}.{name}", old_names)
        missing = set(self._specs.REQUIRED_HOOKS) - {old_names.get(name, name) for name in marked}
        if missing:
            listed = ", ".join(name for name in self._specs.REQUIRED_HOOKS if name in missing)
            raise ContractError(f"{whose} lacks the required hook(s) {listed}")
        return marked

    def _check_hook(self, adapter: type[Any], name: str, member: Any, where: str, old_names: Mapping[str, str]) -> None:
        """Check the name, the kind and the arguments of one marked method."""
        hook = old_names.get(name, name)
        if hook not in self.hooks:
            if name in self._renamed:
                raise ContractError(
                    f"{where}: contract {self.version} calls this hook {self._renamed[name]}; rename the method"
                )
            raise ContractError(f"{where} is no hook{near(name, self.hooks)}")
        static = hook in self._specs.STATIC_HOOKS
        if static and not isinstance(inspect.getattr_static(adapter, name), (staticmethod, classmethod)):
            raise ContractError(f"{where} must be a @staticmethod: it is asked before the adapter is made")
        known = list(inspect.signature(getattr(self._specs, hook)).parameters)
        for argument in list(inspect.signature(member).parameters)[0 if static else 1 :]:
            if argument not in known:
                takes = ", ".join(known) or "no arguments"
                raise ContractError(f"{where} has no argument {argument!r}{near(argument, known)}; it may take {takes}")

    def static_hook(self, adapter: type[Any], hook: str) -> Callable[[], Any] | None:
        """The method with which an adapter's class answers one of `STATIC_HOOKS`; None where it has none."""
        names = [hook, *(old for old, new in self._renamed.items() if new == hook)]
        methods = (getattr(adapter, name, None) for name in names)
        return next((method for method in methods if hasattr(method, _IMPL)), None)

    def check_wrapper(self, wrapper: object, extension: str) -> None:
        """Check an extension's object: it surrounds hooks; answering in an adapter's place would be another adapter.

        Raises:
            ContractError: a method is no wrapper, or of a hook that is asked of the adapter's class, or there is none.
        """
        members = inspect.getmembers_static(wrapper)  # properties are its own business
        marked = {name: options for name, member in members if (options := getattr(member, _IMPL, None))}
        if not marked:
            raise ContractError(f"{extension}: it surrounds nothing: no method has hookimpl(wrapper=True)")
        for name, options in marked.items():
            member = getattr(wrapper, name)
            where, hook = f"{extension}.{name}", self._renamed.get(name, name)
            if hook in self._specs.STATIC_HOOKS:
                raise ContractError(
                    f"{where} would never be called: {hook} is asked of the adapter's class, before there is a model "
                    f"to extend"
                )
            if not options["wrapper"]:
                raise ContractError(f"{where} must be a wrapper: hookimpl(wrapper=True), with a yield")
            self.warn_of(name, member, where)

    # --- what is to go ------------------------------------------------------------------------------------------------

    def warn_of(self, name: str, member: Any, where: str) -> None:
        """Warn of a marked method with an old name, or whose hook or arguments the specification says are to go."""
        hook = self._renamed.get(name, name)
        if hook != name:
            warning = FutureWarning(
                f"{hook} is this hook's name since contract {self.version}; with contract {self.version + 1} {name} "
                f"will no longer be called. Upgrade the plugin; its author: rename the method, and declare "
                f"contract = {self.version}"
            )
            self._warn(warning, member, where)
        options = getattr(getattr(self._specs, hook, None), _SPEC, {})
        if options.get("warn_on_impl"):
            self._warn(options["warn_on_impl"], member, where)
        for argument, warning in (options.get("warn_on_impl_args") or {}).items():
            if argument in inspect.signature(member).parameters:
                self._warn(warning, member, f"{where}, argument {argument!r}")

    def _warn(self, warning: Warning, member: Any, where: str) -> None:
        """Warn once per process, at the method's place in its source: that is where its author has to go.

        Python's own memory of what it warned of is lost whenever somebody changes its filters.
        """
        message = f"{where}: {warning}"
        if message in self._warned:
            return
        code = inspect.unwrap(getattr(member, "__func__", member)).__code__
        warnings.warn_explicit(message, type(warning), code.co_filename, code.co_firstlineno)
        self._warned.add(message)  # not where warnings are errors: then every load fails


class _Manager(pluggy.PluginManager):
    """Registers a method of an old name under the new one, with its options.

    What is to go is warned of in `Contract.warn_of`, once and by distribution; pluggy would warn at every load, and of
    the core's own defaults, too.
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
"""This version's."""


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


def near(name: str, known: Iterable[str]) -> str:
    """A hint at the known name that somebody may have meant, or nothing."""
    found = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def _spoken(versions: range) -> str:
    return str(versions[0]) if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
