"""Environments that differ from the development install by one library's release, or by Python's.

Another release of transformers or torch lies in a folder of its own, which goes before the installed one; another
Python has a virtual environment, with everything in it. Knows what to run in none of them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
OLDEST = {"transformers": Version("5.17"), "torch": Version("2.11"), "python": Version("3.11")}
"""The oldest release of each library; `python` is the interpreter."""
NEWEST = {"transformers": Version("6"), "torch": Version("3"), "python": Version("3.14")}
"""The first release of each that is not tried."""
_PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


@dataclass(frozen=True)
class Environment:
    """An environment, made by `environment_of`.

    Args:
        library: `transformers`, `torch` or `python`.
        release: of that library.
        python: its interpreter.
        folder: of the library, if it is not the installed one.
    """

    library: str
    release: str
    python: str
    folder: Path | None = None

    @property
    def name(self) -> str:
        """What users call it."""
        return f"{self.library} {self.release}"

    def run(
        self, command: Sequence[str], libraries: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of Python in it, from the checkout's root; what it says on standard error is shown.

        Args:
            command: the arguments of the interpreter.
            libraries: a further folder of libraries.
            variables: of the environment, beside those that are set.
        """
        paths = [str(path) for path in (self.folder, libraries) if path is not None]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", **variables}
        return subprocess.run([self.python, *command], cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE)


def releases(library: str) -> list[str]:
    """Return the newest release of each minor version that is supported, oldest first.

    Of Python those whose interpreter is found, as `python3.12`.

    Raises:
        subprocess.CalledProcessError: the package index did not answer.
    """
    if library == "python":
        minors = range(OLDEST["python"].minor, NEWEST["python"].minor)
        return [f"3.{minor}" for minor in minors if _runs(f"python3.{minor}")]
    command = [sys.executable, *_PIP[:2], "index", "versions", library]
    said = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
    listed = re.search(r"Available versions: (.*)", said)
    return newest_of_minors(listed[1].split(", ") if listed else (), OLDEST[library], NEWEST[library])


def newest_of_minors(listed: Sequence[str], oldest: Version, end: Version) -> list[str]:
    """Return the newest of the listed versions of each minor version in `[oldest, end)`, oldest first.

    Builds of a release for one kind of machine (`2.13.0+cpu`) and releases before the release are left out.
    """
    known = sorted(
        version
        for version in map(Version, listed)
        if version.local is None and not version.is_prerelease and oldest <= version < end
    )
    return [str(version) for version in {(version.major, version.minor): version for version in known}.values()]


def installed(library: str) -> str:
    """Return the release of the development install, as `releases` gives it."""
    if library == "python":
        return f"3.{sys.version_info.minor}"
    return Version(metadata.version(library)).public


def environment_of(library: str, release: str, where: Path) -> Environment:
    """Make an environment, or take the one that was made before.

    Args:
        library, release: what differs.
        where: the folder of environments.

    Raises:
        subprocess.CalledProcessError: pip failed, and said why.
    """
    if release == installed(library):
        return Environment(library, release, sys.executable)
    folder = where / f"{library}-{release}"
    if library == "python":
        subprocess.run(["make", "setup", f"PYTHON=python{release}", f"VENV={folder}"], cwd=ROOT, check=True)
        return Environment(library, release, str(folder / "bin" / "python"))
    if not (folder / ".ready").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        _install(folder, f"{library}=={release}", with_all=library == "torch")
        (folder / ".ready").touch()
    return Environment(library, release, sys.executable, folder)


def _install(folder: Path, wanted: str, *, with_all: bool) -> None:
    """Install a distribution with all that it needs, or with what the development install has no fitting release of."""
    pip = [sys.executable, *_PIP, "install", "--no-compile", "--target", str(folder)]
    if with_all:
        subprocess.run([*pip, wanted], check=True)
        return
    subprocess.run([*pip, "--no-deps", wanted], check=True)
    (found,) = metadata.distributions(name=Requirement(wanted).name, path=[str(folder)])
    if unmet := [line for line in found.requires or () if not _is_met(Requirement(line))]:
        subprocess.run([*pip, "--no-deps", *unmet], check=True)


def _is_met(needed: Requirement) -> bool:
    """Whether the development install fits what a distribution needs without its extras."""
    if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
        return True
    try:
        return metadata.version(needed.name) in needed.specifier
    except metadata.PackageNotFoundError:
        return False


def _runs(interpreter: str) -> bool:
    try:
        return subprocess.run([interpreter, "--version"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False
