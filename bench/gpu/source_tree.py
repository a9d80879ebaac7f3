"""The checkout as if it were installed, for machines where nothing can be installed.

corellm finds its plugins by entry points, which are metadata of installed distributions. What an installer would write
of that, name, version and entry points, is written here from each `pyproject.toml` into a folder of `*.dist-info`, and
that folder and the sources go in front of the module search path. Knows nothing of what the distributions hold.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def projects() -> list[Path]:
    """The `pyproject.toml` of every distribution that the checkout makes."""
    return [ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))]


def sources() -> list[Path]:
    """The folders that packages are imported from."""
    return [ROOT / "core", ROOT / "kernels", *sorted(ROOT.glob("plugins/*/src"))]


def write_metadata(folder: Path) -> None:
    """Write a `*.dist-info` for each distribution."""
    for file in projects():
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        (info / "METADATA").write_text(metadata, encoding="utf-8")
        (info / "entry_points.txt").write_text(_entry_points(project), encoding="utf-8")


def _entry_points(project: Mapping[str, Any]) -> str:
    lines = []
    for group, entries in project.get("entry-points", {}).items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()), ""]
    return "\n".join(lines)


def python_path(metadata: Path) -> str:
    """`PYTHONPATH` for processes that use the checkout; what was on it stays, behind."""
    before = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(metadata), *map(str, sources()), *([before] if before else [])])
