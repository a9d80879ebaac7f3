"""The installed plugin that a new one is copied from: its sources, architectures and requirements.

Any distribution with entry points of `corellm.models` can be copied, from a wheel or an editable install. The modules
at the top of its package are copied, and the modules of the package that these import; a demo model or another
family's folder is not. The copy serves the architectures whose adapters are copied.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path, PurePosixPath

from corellm.errors import BrokenPluginError, PluginError, PluginNotFoundError
from corellm.plugin.adapters import AdapterEntry, installed_adapters
from corellm_testing.scaffold.names import PREFIX, canonical


@dataclass(frozen=True)
class Original:
    """A plugin to copy."""

    distribution: str
    version: str
    package: str
    """Import name, dotted in a namespace package."""
    sources: Mapping[str, str]
    """`{path in the package: text}` of the copied modules."""
    adapters: Mapping[str, tuple[str, str]]
    """`{architecture: (module, class)}` of the copied adapters."""
    left_out: Sequence[str]
    """Architectures whose adapters are not copied."""
    requirements: Sequence[str]
    """As in its metadata, without those of extras."""
    license: str | None
    """An SPDX expression."""
    license_text: str | None

    @property
    def adapter_classes(self) -> set[str]:
        """Names of the copied adapters."""
        return {name for _, name in self.adapters.values()}

    @property
    def modality(self) -> str:
        """The first modality that its `supported_mm_limits` or the hook of that name names, or else image."""
        for node in (node for text in self.sources.values() for node in ast.walk(ast.parse(text))):
            if _named(node) & {"supported_mm_limits", "get_supported_mm_limits"}:
                named = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
                return next((modality for modality in ("image", "video", "audio") if modality in named), "image")
        return "image"


def _named(node: ast.AST) -> set[str]:
    """Return the names that a statement gives to a method or to attributes."""
    if isinstance(node, ast.FunctionDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def find_original(like: str) -> Original:
    """Return an installed plugin's sources and metadata.

    Args:
        like: its distribution, with or without `corellm-`.

    Raises:
        PluginNotFoundError: no such plugin is installed.
        BrokenPluginError: its sources cannot be found or read.
        PluginError: its layout cannot be copied.
    """
    entries = _entries_of(like)
    first = entries[0]
    where = f"{first.distribution} {first.version}"
    package, folder = _package(entries, where)
    sources = _sources(package, folder, where)
    modules = {_module(package, path) for path in sources}
    adapters = {
        entry.architecture: (entry.entry_point.module, entry.entry_point.attr)
        for entry in entries
        if entry.entry_point.module in modules
    }
    if not _defines(sources.get("tiny.py", ""), "make_tiny_checkpoint"):
        raise PluginError(
            f"{where} has no module tiny with make_tiny_checkpoint(path, seed), by which a copy could be tested; "
            f"begin from another plugin"
        )
    metadata = distribution(first.distribution)
    return Original(
        first.distribution,
        first.version,
        package,
        sources,
        adapters,
        sorted({entry.architecture for entry in entries} - set(adapters)),
        [requirement for requirement in metadata.requires or () if "extra ==" not in requirement],
        str(metadata.metadata.json.get("license_expression") or "") or None,
        _license_text(metadata),
    )


def _entries_of(like: str) -> list[AdapterEntry]:
    entries = installed_adapters()
    found = [e for e in entries if canonical(e.distribution) in (canonical(like), PREFIX + canonical(like))]
    if not found:
        distributions = sorted({entry.distribution for entry in entries})
        installed = ", ".join(distributions) or "none"
        name = PREFIX + canonical(like).removeprefix(PREFIX)
        near = difflib.get_close_matches(name, map(canonical, distributions), n=1, cutoff=0.9)
        way_out = f"did you mean {near[0]!r}?" if near else "take one of those, or install it"
        raise PluginNotFoundError(f"no plugin {like!r} is installed to begin from (installed: {installed}); {way_out}")
    return found


def _package(entries: Iterable[AdapterEntry], where: str) -> tuple[str, Path]:
    """Return the package around all adapters, and its folder."""
    names = sorted({entry.entry_point.module for entry in entries}, key=lambda name: name.count("."))
    for name in (names[0], names[0].rpartition(".")[0]):
        try:
            spec = importlib.util.find_spec(name) if name else None
        except Exception as error:  # find_spec imports the parent packages
            raise BrokenPluginError(f"{where}: {name} cannot be found: {type(error).__name__}: {error}") from error
        if spec is not None and spec.submodule_search_locations:
            return name, Path(next(iter(spec.submodule_search_locations)))
    raise PluginError(f"{where}: {names[0]} is no package, so there is nothing to copy; begin from another plugin")


def _sources(package: str, folder: Path, where: str) -> dict[str, str]:
    """Return the modules at the top and the modules of the package that they import."""
    sources: dict[str, str] = {}
    waiting = sorted(path.relative_to(folder) for path in folder.glob("*.py"))
    while waiting:
        path = waiting.pop()
        if path.as_posix() in sources:
            continue
        try:
            text = (folder / path).read_text(encoding="utf-8")
            tree = ast.parse(text)
        except (OSError, ValueError, SyntaxError) as error:
            raise BrokenPluginError(f"{where}: {folder / path} cannot be read: {error}") from error
        sources[path.as_posix()] = text
        for name in _imported(tree, _module(package, path.as_posix()), is_package=path.name == "__init__.py"):
            if name.startswith(f"{package}."):
                waiting += _files(folder, name[len(package) + 1 :])
    return dict(sorted(sources.items()))


def _imported(tree: ast.Module, module: str, *, is_package: bool) -> Iterator[str]:
    """Yield the dotted names that a module imports, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _files(folder: Path, dotted: str) -> Iterator[Path]:
    """Yield the files that importing a name of the package reads: the module's and its parent packages'."""
    parts = dotted.split(".")
    for end in range(1, len(parts) + 1):
        stem = Path(*parts[:end])
        for path in (stem.with_suffix(".py"), stem / "__init__.py"):
            if (folder / path).is_file():
                yield path


def _module(package: str, path: str) -> str:
    """Return the import name of the module in a file."""
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join([package, *(parts[:-1] if parts[-1] == "__init__" else parts)])


def _defines(source: str, function: str) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == function for node in ast.parse(source).body)


def _license_text(metadata: Distribution) -> str | None:
    """Return the text of the licence file in its metadata, or None."""
    for file in metadata.files or ():
        if ".dist-info" in file.parts[0] and re.match(r"LICEN[CS]E|COPYING", file.name):
            return Path(str(file.locate())).read_text(encoding="utf-8")
    return None
