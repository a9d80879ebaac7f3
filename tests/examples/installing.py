"""Distributions as if they were installed: sources on the path, and metadata beside them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path


def installed(project: Path, metadata: Path) -> list[Path]:
    """Write a distribution's metadata; gives the folders that have to be on `sys.path`.

    Args:
        project: a distribution's folder, with a `src` layout.
        metadata: folder for the `.dist-info`; made if need be.
    """
    told = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [f"License-Expression: {told['license']}"] if "license" in told else []
    requirements = told.get("dependencies", ())
    pretend(metadata, told["name"], told["entry-points"]["corellm.models"], requirements, told["version"], lines)
    return [project / "src", metadata]


def pretend(
    metadata: Path,
    name: str,
    models: Mapping[str, str],
    requirements: Sequence[str] = (),
    version: str = "1.0",
    further: Sequence[str] = (),
) -> Path:
    """Write the metadata of a distribution that serves `models`, `{architecture: entry point}`; gives their folder."""
    info = metadata / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *further]
    lines += [f"Requires-Dist: {requirement}" for requirement in requirements]
    (info / "METADATA").write_text("\n".join([*lines, ""]), encoding="utf-8")
    entries = "".join(f"{architecture} = {value}\n" for architecture, value in models.items())
    (info / "entry_points.txt").write_text(f"[corellm.models]\n{entries}", encoding="utf-8")
    return info
