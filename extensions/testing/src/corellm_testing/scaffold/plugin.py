"""A new plugin's files: the original's modules renamed, and the distribution around them.

All files are made and checked in memory before any is written.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from corellm.errors import InvalidParameterError, PluginConflictError
from corellm.plugin.adapters import installed_adapters
from corellm_testing.scaffold import rewriting
from corellm_testing.scaffold.distribution import distribution_files
from corellm_testing.scaffold.names import PluginName, canonical
from corellm_testing.scaffold.original import Original


@dataclass(frozen=True)
class NewPlugin:
    """The files of a new plugin, in memory."""

    name: PluginName
    original: Original
    architectures: Mapping[str, str]
    """`{architecture of the original: architecture of the new plugin}`."""
    files: Mapping[str, str]
    """`{path in the distribution's folder: text}`."""

    def write(self, folder: Path) -> None:
        """Write the files.

        Raises:
            InvalidParameterError: the folder is not empty, or cannot be written to.
        """
        try:
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise InvalidParameterError(
                    f"{folder} is there already and not empty; remove it, or name another one with --into",
                    param="into",
                )
            for path, text in self.files.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise InvalidParameterError(f"{folder} cannot be written: {error.strerror}", param="into") from error


def make_plugin(name: PluginName, original: Original) -> NewPlugin:
    """Return a copy of a plugin under another name.

    Raises:
        PluginConflictError: the name, or an architecture made from it, is taken.
        InvalidParameterError: the sources use the name for something else.
    """
    _refuse_installed(name)
    several = len(original.adapters) > 1
    architectures = {old: name.architecture(old, several=several) for old in original.adapters}
    _refuse_served(name, architectures)
    renaming = rewriting.Renaming(
        (original.package, name.package),
        (original.distribution, name.distribution),
        _new_identifiers(name, original, architectures),
        architectures,
    )
    modules = {path: renaming.apply(text) for path, text in original.sources.items()}
    adapters = {
        architectures[old]: (renaming.apply(module), renaming.identifiers.get(adapter, adapter))
        for old, (module, adapter) in original.adapters.items()
    }
    modules |= _redescribed(name, original, modules)
    modules["tiny.py"] = rewriting.name_architecture(modules["tiny.py"], next(iter(adapters)))
    modules.setdefault("contract.py", _contract(name, adapters))
    modules["py.typed"] = ""
    files = {f"src/{name.package}/{path}": text for path, text in modules.items()}
    defined = sorted(rewriting.defined_in(modules["contract.py"]), key=str.lower)
    tests = [name for name in defined if name.startswith("Test")]
    files |= distribution_files(name, original, adapters, tests)
    return NewPlugin(name, original, architectures, files)


def _refuse_installed(name: PluginName) -> None:
    try:
        found = distribution(name.distribution)
    except PackageNotFoundError:
        if importlib.util.find_spec(name.package) is None:
            return
        raise PluginConflictError(f"a package {name.package} is installed already; choose another name") from None
    raise PluginConflictError(f"{name.distribution} {found.version} is installed already; choose another name")


def _refuse_served(name: PluginName, architectures: Mapping[str, str]) -> None:
    for entry in installed_adapters():
        if entry.architecture in architectures.values():
            raise PluginConflictError(
                f"a plugin called {canonical(name.camel)} would serve {entry.architecture}, which {entry.distribution} "
                f"{entry.version} serves already; choose another name"
            )


def _new_identifiers(name: PluginName, original: Original, architectures: Mapping[str, str]) -> dict[str, str]:
    """Return new names for the only adapter's class and for all names that contain it; none for several adapters."""
    if len(original.adapter_classes) > 1:
        return {}
    (adapter,) = original.adapter_classes
    defined = {name for source in original.sources.values() for name in rewriting.defined_in(source)}
    after = {old: old.replace(adapter, name.camel) for old in sorted(defined) if adapter in old}
    renamed = {**after, **{old: new for old, new in architectures.items() if old in defined}}
    used = {name for source in original.sources.values() for name in rewriting.names_in(source)}
    if taken := sorted((set(renamed.values()) & used) - set(renamed)):
        raise InvalidParameterError(
            f"{taken[0]} means something else in {original.distribution}, so an adapter cannot be called that; choose "
            f"another name",
            param="name",
        )
    return renamed


def _redescribed(name: PluginName, original: Original, modules: Mapping[str, str]) -> dict[str, str]:
    """Return the modules with docstrings that name the new plugin."""
    package = modules.get("__init__.py", "")
    family = re.match(r"(.{1,60}?) for corellm\b", rewriting.docstring(package))
    header = f"{name.camel} for corellm, begun as a copy of {original.distribution} {original.version}."
    header += " Description of the original:" * bool(rewriting.docstring(package))
    told = dict(modules)
    if family is not None:
        for old, new in ((f"{family[1]} keep ", f"{name.camel} keeps "), (family[1], name.camel)):
            told = {path: rewriting.reword_first_line(text, old, new) for path, text in told.items()}
    return {**told, "__init__.py": rewriting.begin_docstring(package, header)}


def _contract(name: PluginName, adapters: Mapping[str, tuple[str, str]]) -> str:
    """Return a module of contract tests for an original without one: a class for each architecture."""
    imports = "\n".join(sorted({f"from {module} import {adapter}" for module, adapter in adapters.values()}))
    classes = "".join(
        f'\n\nclass Test{architecture}(AdapterContract):\n    """On the tiny checkpoint."""\n\n'
        f"    adapter = {adapter}\n" + f'    architecture = "{architecture}"\n' * (len(adapters) > 1)
        for architecture, (_, adapter) in adapters.items()
    )
    return (
        f'"""{name.camel} keeps the contract: `pytest --pyargs {name.package}.contract`."""\n\n'
        f"from __future__ import annotations\n\nfrom corellm_testing import AdapterContract\n{imports}\n{classes}"
    )
