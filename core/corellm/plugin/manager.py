"""The plugin manager of one loaded model: the core's defaults, the adapter, extensions' wrappers.

Knows pluggy; does not know entry points or what the hooks do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pluggy

from corellm.errors import BrokenPluginError
from corellm.hookspecs import ModelContext
from corellm.plugin.attributes import AttributeDefaults, check_values
from corellm.plugin.contract import CONTRACT, Contract
from corellm.plugin.extensions import call_extensions
from corellm.plugin.hook_callers import hook_callers
from corellm.plugin.tracebacks import own_traceback


def call_static_hook(
    adapter: type[Any], hook: str, distribution: str, *, contract: Contract = CONTRACT
) -> Callable[..., Any] | None:
    """Return the result of one of `STATIC_HOOKS` of an adapter's class; None if it does not have it.

    Raises:
        BrokenPluginError: it raised.
    """
    method = contract.static_hook(adapter, hook)
    try:
        result: Callable[..., Any] | None = method() if method is not None else None
    except Exception as error:
        raise BrokenPluginError(
            f"{distribution}: {adapter.__qualname__}.{hook} failed: {type(error).__name__}: {error}\n"
            f"{own_traceback(error)}"
        ) from error
    return result


def build_manager(
    adapter: type[Any],
    context: ModelContext,
    *,
    distribution: str,
    defaults: Iterable[object] = (),
    extensions: pluggy.PluginManager | None = None,
    contract: Contract = CONTRACT,
) -> pluggy.PluginManager:
    """Make the plugin manager of one loaded model: the core's defaults, the adapter, extensions' wrappers.

    Args:
        adapter: a class from `AdapterEntry.load`, which checked it.
        context: the constructor's argument.
        distribution: the adapter's, for messages.
        defaults: objects with `hookimpl(trylast=True)` methods.
        extensions: the manager of `load_extensions`; None for no extension.
        contract: the hooks that there are.

    Raises:
        BrokenPluginError: the adapter's constructor raised.
        ContractError: an attribute that the constructor sets, or an extension's wrapper, breaks the contract.
    """
    manager = contract.make_manager()
    for default in defaults:
        manager.register(default)
    try:
        instance = adapter(context)
    except Exception as error:
        raise BrokenPluginError(
            f"{distribution}: making the adapter {adapter.__qualname__} failed: {type(error).__name__}: {error}\n"
            f"{own_traceback(error)}"
        ) from error
    check_values(instance, f"{distribution}: {adapter.__qualname__}")
    manager.register(AttributeDefaults(instance, hook_callers(manager)))
    manager.register(instance, name=distribution)
    if extensions is not None:
        for name, wrapper in call_extensions("wrap_adapter", _anything, manager=extensions, context=context):
            where = f"{name}, {type(wrapper).__qualname__}"
            contract.check_wrapper(wrapper, where)
            manager.register(wrapper, name=where)
    return manager


def _anything(result: object) -> bool:
    return True
