"""Discovery: which installed distribution serves which architecture, and the plugin manager of one loaded model.

Knows entry points and pluggy; what adapters must be like is `contract`'s business, and what the hooks do is nobody's
here. Imports no torch: `corellm plugins` answers from here.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pluggy

from corellm.contract import CONTRACT, Contract, contract_versions
from corellm.errors import BrokenPluginError, ContractError, PluginConflictError, PluginNotFoundError, own_traceback
from corellm.hookspecs import ModelContext
from corellm.installed_extensions import ask_extensions

__all__ = [
    "CHECKPOINTS_GROUP",
    "HOOK_NAMES",
    "KNOWN_FAMILIES",
    "MODELS_GROUP",
    "AdapterEntry",
    "ask_class",
    "build_manager",
    "check_adapter_class",
    "contract_versions",
    "find_adapter",
    "installed_adapters",
    "shipped_checkpoints",
]

MODELS_GROUP = "corellm.models"
CHECKPOINTS_GROUP = "corellm.checkpoints"

KNOWN_FAMILIES = {
    "LlavaForConditionalGeneration": "corellm-llava",
    "FuyuForCausalLM": "corellm-fuyu",
    "Blip2ForConditionalGeneration": "corellm-blip2",
    "QWenLMHeadModel": "corellm-qwen-vl",
    "Qwen2VLForConditionalGeneration": "corellm-qwen-vl",
    "Qwen2_5_VLForConditionalGeneration": "corellm-qwen-vl",
    "Qwen3VLForConditionalGeneration": "corellm-qwen-vl",
    "Qwen2AudioForConditionalGeneration": "corellm-qwen-audio",
}
"""Where families live that this project publishes: only for the advice in an error message."""

HOOK_NAMES = CONTRACT.hooks
check_adapter_class = CONTRACT.check_adapter


@dataclass(frozen=True)
class AdapterEntry:
    """One claim of an installed distribution to serve an architecture."""

    architecture: str
    distribution: str
    version: str
    entry_point: EntryPoint

    def load(self) -> type[Any]:
        """Import the adapter class and check what can be checked without a model.

        Raises:
            BrokenPluginError: its module cannot be imported.
            ContractError: it is no class, or written for another contract, or a hook lacks `@hookimpl` or is missing.
        """
        try:
            adapter = self.entry_point.load()
        except Exception as error:
            raise BrokenPluginError(
                f"the adapter for {self.architecture} in {self.distribution} {self.version} cannot be imported: "
                f"{type(error).__name__}: {error}\n{own_traceback(error)}"
                f"Repair it, or remove it: pip uninstall {self.distribution}"
            ) from error
        if not inspect.isclass(adapter):
            raise ContractError(
                f"{self.distribution}: the entry point {self.entry_point.value!r} must name the adapter class, "
                f"not {type(adapter).__name__} {adapter!r}"
            )
        check_adapter_class(adapter, self.distribution)
        return adapter


# --- finding ----------------------------------------------------------------------------------------------------------


def _distribution(entry_point: EntryPoint) -> tuple[str, str]:
    dist = entry_point.dist
    return (dist.name, dist.version) if dist is not None else (entry_point.value, "?")


def installed_adapters() -> list[AdapterEntry]:
    """Every claim of every installed distribution, by distribution and architecture; nothing is imported."""
    found = {
        (*_distribution(entry), entry.name, entry.value): entry for entry in entry_points(group=MODELS_GROUP)
    }  # a distribution seen twice on sys.path is still one claim
    return [
        AdapterEntry(architecture, distribution, version, entry)
        for (distribution, version, architecture, _), entry in sorted(found.items(), key=lambda item: item[0])
    ]


def find_adapter(
    architectures: Sequence[str], *, adapter: str | None = None, installed: Iterable[AdapterEntry] | None = None
) -> AdapterEntry:
    """Choose the adapter for a checkpoint.

    Args:
        architectures: of the checkpoint's `config.json`.
        adapter: distribution to take, where several claim the architecture.
        installed: claims to choose from; None for those installed.

    Raises:
        PluginNotFoundError: nobody serves it; names the distribution to install where it is known.
        PluginConflictError: several do and `adapter` does not choose.
    """
    entries = installed_adapters() if installed is None else list(installed)
    claims = [entry for entry in entries if entry.architecture in architectures]
    wanted = ", ".join(architectures) or "(the config names no architecture)"
    if adapter is not None:
        chosen = [entry for entry in claims if _same_name(entry.distribution, adapter)]
        if not chosen:
            offered = ", ".join(sorted({entry.distribution for entry in claims})) or "none"
            raise PluginNotFoundError(
                f"adapter {adapter!r} does not serve {wanted}; installed plugins that do: {offered}"
            )
        claims = chosen
    if not claims:
        raise PluginNotFoundError(_not_found_message(wanted, architectures, entries))
    distributions = sorted({f"{entry.distribution} {entry.version}" for entry in claims})
    if len(distributions) > 1:
        first = claims[0].distribution
        raise PluginConflictError(
            f"{' and '.join(distributions)} both claim {wanted}; choose one with adapter={first!r} "
            f"(--adapter {first}), or uninstall the other"
        )
    return claims[0]


def _same_name(one: str, other: str) -> bool:
    """Distribution names compare without case and with `-`, `_` and `.` alike (PEP 503)."""
    return one.lower().replace("_", "-").replace(".", "-") == other.lower().replace("_", "-").replace(".", "-")


def _not_found_message(wanted: str, architectures: Sequence[str], entries: Sequence[AdapterEntry]) -> str:
    served = ", ".join(f"{e.architecture} ({e.distribution})" for e in entries) or "none"
    homes = {KNOWN_FAMILIES[name] for name in architectures if name in KNOWN_FAMILIES}
    advice = (
        f"install it: pip install {' '.join(sorted(homes))}"
        if homes
        else "install a plugin for it, or write one (see CONTRIBUTING.md)"
    )
    return f"no installed plugin serves {wanted}; {advice}. Installed: {served}"


def shipped_checkpoints() -> dict[str, Path]:
    """Checkpoints that installed distributions ship: `{name: directory}`, e.g. `demo`. The packages are not imported
    beyond what finding their directory takes.
    """
    found: dict[str, Path] = {}
    for entry in entry_points(group=CHECKPOINTS_GROUP):
        spec = importlib.util.find_spec(entry.value)
        for location in (spec.submodule_search_locations or ()) if spec is not None else ():
            found.setdefault(entry.name, Path(location))
    return found


# --- one manager per loaded model -------------------------------------------------------------------------------------


def ask_class(
    adapter: type[Any], hook: str, distribution: str, *, contract: Contract = CONTRACT
) -> Callable[..., Any] | None:
    """The answer of an adapter's class to one of `STATIC_HOOKS`; None where it has none.

    Raises:
        BrokenPluginError: it raised.
    """
    method = contract.static_hook(adapter, hook)
    try:
        answer: Callable[..., Any] | None = method() if method is not None else None
    except Exception as error:
        raise BrokenPluginError(
            f"{distribution}: {adapter.__qualname__}.{hook} failed: {type(error).__name__}: {error}\n"
            f"{own_traceback(error)}"
        ) from error
    return answer


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
        adapter: a class `AdapterEntry.load` gave.
        context: what the adapter is made with.
        distribution: the adapter's, for messages.
        defaults: objects with `hookimpl(trylast=True)` methods.
        extensions: the manager of `load_extensions`; None for no extension.
        contract: which hooks there are.

    Raises:
        BrokenPluginError: the adapter's constructor raised.
        ContractError: a hook or an argument that the contract does not know, by name.
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
    _register_checked(manager, instance, distribution)
    if extensions is not None:
        for name, wrapper in ask_extensions("wrap_adapter", _anything, manager=extensions, context=context):
            where = f"{name}, {type(wrapper).__qualname__}"
            contract.check_wrapper(wrapper, where)
            _register_checked(manager, wrapper, where)
    return manager


def _anything(answer: object) -> bool:
    return True


def _register_checked(manager: pluggy.PluginManager, plugin: object, name: str) -> None:
    try:
        manager.register(plugin, name=name)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise ContractError(f"{name} breaks the contract: {' '.join(str(error).split())}") from error
