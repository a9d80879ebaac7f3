"""What every distribution of the checkout carries, and that no advice has pip fetch one of them from the index.

Builds source archives only; of wheels hatchling lists the files. `check_wheels` uses built wheels.
"""

from __future__ import annotations

import re
import subprocess
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from tests.wheels.environments import ROOT

FOLDERS = sorted(
    str(project.parent.relative_to(ROOT))
    for pattern in (
        "pyproject.toml",
        "plugins/*/pyproject.toml",
        "extensions/*/pyproject.toml",
        "examples/*/pyproject.toml",
    )
    for project in ROOT.glob(pattern)
)


def source_archive(folder: Path, out: Path) -> set[str]:
    """The files of the source archive that is built from a folder."""
    (archive,) = SdistBuilder(str(folder)).build(directory=str(out), versions=["standard"])
    with tarfile.open(archive) as opened:
        return {name.partition("/")[2] for name in opened.getnames()}


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_distribution_is_complete(folder: str, tmp_path: Path) -> None:
    """README, licence and version; `py.typed` in every package of its wheel; a source archive that has them."""
    where = ROOT / folder
    project = tomllib.loads((where / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["license"] == "Apache-2.0"
    assert "Apache License" in (where / "LICENSE").read_text(encoding="utf-8")
    assert len((where / project["readme"]).read_text(encoding="utf-8")) > 200
    assert re.fullmatch(r"\d+\.\d+\.\d+", project["version"])
    wheel = {file.distribution_path for file in WheelBuilder(str(where)).recurse_included_files()}
    assert wheel
    assert {f"{path.split('/')[0]}/py.typed" for path in wheel} <= wheel
    assert {"README.md", "LICENSE", "pyproject.toml"} <= source_archive(where, tmp_path)


def test_the_source_archive_is_the_core_and_its_kernels(tmp_path: Path) -> None:
    """No file of a plugin, a test or the documentation, and nothing that was compiled."""
    files = source_archive(ROOT, tmp_path)
    beside = {file for file in files if not file.startswith(("core/corellm/", "kernels/corellm_kernels/"))}
    assert beside == {
        ".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "kernels/hatch_build.py", "pyproject.toml",
    }  # fmt: skip
    assert "kernels/corellm_kernels/cpu/build.py" in files
    assert not {file for file in files if file.endswith((".so", ".pyc"))}


def advised() -> Iterator[tuple[str, str]]:
    """Yield `(file, argument)` for what code, pages and workflows say that pip installs."""
    kinds = ("*.py", "*.md", "*.toml", "*.yml", "*.yaml", "*Dockerfile", "Makefile")
    listed = subprocess.run(["git", "ls-files", *kinds], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if name.startswith(("tests/", "CHANGELOG")) or "/tests/" in name:
            continue
        text = (ROOT / name).read_text(encoding="utf-8")
        for line in re.findall(r"\bpip install (.+)", text):
            for word in re.findall(r"'[^']*'|\"[^\"]*\"|[^\s'\"`]+", re.split(r"[`#;)]", line)[0]):
                yield name, word.strip("'\"").rstrip(".,")


def test_no_advice_names_the_index() -> None:
    """`corellm` there is another project, and most of our names are unregistered: pip gets paths of a checkout."""
    words = list(advised())
    assert ("README.md", "./plugins/llava") in words
    assert not [(file, word) for file, word in words if re.match(r"corellm(?![/\w])", word)]


def test_a_workflow_has_no_name_to_install() -> None:
    """The workflow of the example installs corellm from where its author says."""
    text = (ROOT / "examples/plugin-template/.github/workflows/test.yml").read_text(encoding="utf-8")
    assert re.search(r"CORELLM: \$\{\{ vars\.CORELLM \}\}", text)
