"""The checkout as if it were installed, for machines where nothing can be installed.

corellm finds plugins by entry points, which are metadata of installed distributions. What an installer would write of
that is written here, from each `pyproject.toml`, into a folder of `*.dist-info` in front of the module search path.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python_path(metadata: Path) -> str:
    """Write the metadata, and give a `PYTHONPATH` for processes that use the checkout."""
    folders = [*sorted(ROOT.glob("plugins/*")), *sorted(ROOT.glob("extensions/*"))]
    for file in (ROOT / "pyproject.toml", *(folder / "pyproject.toml" for folder in folders)):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        info = metadata / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir(parents=True)
        head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        (info / "METADATA").write_text(head, encoding="utf-8")
        groups = project.get("entry-points", {}).items()
        lines = [f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in entries.items()) for group, entries in groups]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    sources = [ROOT / "core", ROOT / "kernels", *(folder / "src" for folder in folders)]
    return os.pathsep.join([str(metadata), *map(str, sources), *filter(None, [os.environ.get("PYTHONPATH")])])
