"""Which installed distribution serves which architecture.

A distribution claims architectures by name (`corellm.models`), or by the end of their names (`corellm.fallbacks`): a
fallback is asked only where no distribution claims the name. Knows entry points; what an adapter must be like is in
`contract`.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from corellm.errors import BrokenPluginError, ContractError, PluginConflictError, PluginNotFoundError
from corellm.plugin.contract import CONTRACT
from corellm.plugin.distributions import distribution_of
from corellm.plugin.tracebacks import own_traceback

MODELS_GROUP = "corellm.models"
FALLBACKS_GROUP = "corellm.fallbacks"
CHECKPOINTS_GROUP = "corellm.checkpoints"
_GENERIC = "corellm-transformers"

KNOWN_FAMILIES = {
    "LlavaForConditionalGeneration": "corellm-llava",
    "FuyuForCausalLM": "corellm-fuyu",
    "Gemma3ForConditionalGeneration": "corellm-gemma3",
    "GitForCausalLM": "corellm-git",
    "BlipForConditionalGeneration": "corellm-blip",
    "Blip2ForConditionalGeneration": "corellm-blip2",
    "InstructBlipForConditionalGeneration": "corellm-blip2",
    "InstructBlipVideoForConditionalGeneration": "corellm-blip2",
    "Florence2ForConditionalGeneration": "corellm-florence2",
    "MllamaForConditionalGeneration": "corellm-mllama",
    "DeepseekVLV2ForCausalLM": "corellm-deepseek-vl2",
    "deepseek_vl_v2": "corellm-deepseek-vl2",
    "MolmoForCausalLM": "corellm-molmo",
    "PaliGemmaForConditionalGeneration": "corellm-paligemma",
    "Kosmos2ForConditionalGeneration": "corellm-kosmos2",
    "Kosmos2_5ForConditionalGeneration": "corellm-kosmos2",
    "ChameleonForConditionalGeneration": "corellm-chameleon",
    "IdeficsForVisionText2Text": "corellm-idefics",
    "Idefics2ForConditionalGeneration": "corellm-idefics2",
    "InternVLChatModel": "corellm-internvl",
    "QWenLMHeadModel": "corellm-qwen-vl",
    "Qwen2VLForConditionalGeneration": "corellm-qwen-vl",
    "Qwen2_5_VLForConditionalGeneration": "corellm-qwen-vl",
    "Qwen3VLForConditionalGeneration": "corellm-qwen-vl",
    "Qwen2AudioForConditionalGeneration": "corellm-qwen-audio",
    "VoxtralForConditionalGeneration": "corellm-voxtral",
}
"""`{architecture: distribution}` that this project publishes, for the advice in an error message.

Or `model_type`, of checkpoints that state no architecture."""


@dataclass(frozen=True)
class AdapterEntry:
    """An entry point by which an installed distribution says that it serves an architecture."""

    architecture: str
    """Its name; of a fallback `*` and the end of the names."""
    distribution: str
    version: str
    entry_point: EntryPoint

    @property
    def is_fallback(self) -> bool:
        """Whether it is asked for names that it does not know."""
        return self.architecture.startswith("*")

    def load(self) -> type[Any]:
        """Import the adapter class and check what can be checked without a model.

        Raises:
            BrokenPluginError: its module cannot be imported.
            ContractError: it is no class, or is not what the contract demands.
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
        CONTRACT.check_adapter(adapter, self.distribution)
        return adapter


def installed_adapters(architectures: Collection[str] | None = None) -> list[AdapterEntry]:
    """Every claim by name of every installed distribution, by distribution and architecture; nothing is imported.

    Only those of `architectures`, where given, which is quicker: metadata of the others are not read.
    """
    return _entries(MODELS_GROUP, "", architectures)


def installed_fallbacks() -> list[AdapterEntry]:
    """Every claim by the end of a name, as of `installed_adapters`."""
    return _entries(FALLBACKS_GROUP, "*")


def _entries(group: str, prefix: str, names: Collection[str] | None = None) -> list[AdapterEntry]:
    claims = [entry for entry in entry_points(group=group) if names is None or entry.name in names]
    # a distribution seen twice on sys.path is still one claim
    found = {(*distribution_of(entry), entry.name, entry.value): entry for entry in claims}
    return [
        AdapterEntry(prefix + name, distribution, version, entry)
        for (distribution, version, name, _), entry in sorted(found.items(), key=lambda item: item[0])
    ]


def find_adapter(architectures: Sequence[str], *, adapter: str | None = None) -> AdapterEntry:
    """Choose the adapter for a checkpoint.

    Args:
        architectures: those that the checkpoint's `config.json` names.
        adapter: distribution to take, if several claim the architecture.

    Raises:
        PluginNotFoundError: no plugin serves it; names the distribution to install, if it is known.
        PluginConflictError: several do, and `adapter` is None.
    """
    claims = installed_adapters(architectures) or _fallbacks_for(architectures)
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
        raise PluginNotFoundError(_not_found_message(wanted, architectures))
    distributions = sorted({f"{entry.distribution} {entry.version}" for entry in claims})
    if len(distributions) > 1:
        first = claims[0].distribution
        raise PluginConflictError(
            f"{' and '.join(distributions)} both claim {wanted}; choose one with adapter={first!r} "
            f"(--adapter {first}), or uninstall the other"
        )
    return claims[0]


def _fallbacks_for(architectures: Sequence[str]) -> list[AdapterEntry]:
    """Return the fallbacks with the longest ending that fits the first name that any fits.

    None for a family that has a distribution of its own.
    """
    if not KNOWN_FAMILIES.keys().isdisjoint(architectures):
        return []
    installed = installed_fallbacks()
    for name in architectures:
        fits = [entry for entry in installed if name.endswith(entry.entry_point.name)]
        if fits:
            longest = max(len(entry.entry_point.name) for entry in fits)
            return [entry for entry in fits if len(entry.entry_point.name) == longest]
    return []


def _same_name(one: str, other: str) -> bool:
    """Distribution names compare without case and with `-`, `_` and `.` alike (PEP 503)."""
    return one.lower().replace("_", "-").replace(".", "-") == other.lower().replace("_", "-").replace(".", "-")


def _not_found_message(wanted: str, architectures: Sequence[str]) -> str:
    installed = (*installed_adapters(), *installed_fallbacks())
    served = ", ".join(f"{entry.architecture} ({entry.distribution})" for entry in installed) or "none"
    homes = sorted({KNOWN_FAMILIES[name] for name in architectures if name in KNOWN_FAMILIES})
    advice = "install a plugin for it, or write one (see CONTRIBUTING.md)"
    if homes:
        advice = f"install {' or '.join(homes)}, from a checkout: pip install {' '.join(map(folder_of, homes))}"
    elif _is_generic(architectures):
        advice = (
            f"install {_GENERIC}, which serves many models without a plugin of their own, from a checkout: "
            f"pip install {folder_of(_GENERIC)}"
        )
    return f"no installed plugin serves {wanted}; {advice}. Installed: {served}"


def folder_of(distribution: str) -> str:
    """Where a checkout of this project has a distribution of a family."""
    return "./plugins/" + distribution.removeprefix("corellm-").replace("-", "_")


def _is_generic(architectures: Sequence[str]) -> bool:
    """Whether the generic adapter, which is not installed, would be asked."""
    absent = all(entry.distribution != _GENERIC for entry in installed_fallbacks())
    return absent and any(name.endswith("ForConditionalGeneration") for name in architectures)


def shipped_checkpoints() -> dict[str, Path]:
    """Checkpoints that installed distributions ship: `{name: directory}`, e.g. `demo`; nothing is imported."""
    found: dict[str, Path] = {}
    for entry in entry_points(group=CHECKPOINTS_GROUP):
        package, *folders = entry.value.split(".")
        spec = importlib.util.find_spec(package)
        for location in (spec.submodule_search_locations or ()) if spec is not None else ():
            directory = Path(location, *folders)
            if directory.is_dir():
                found.setdefault(entry.name, directory)
    return found
