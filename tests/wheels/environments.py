"""Environments of their own for wheels: what a distribution's metadata ask for, directly or not, and nothing else.

Extras and markers are considered. Ours come from wheels, everything else is linked in from the environment that runs
this, so nothing is downloaded; what a distribution uses and does not declare is missing.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
Wheels = Mapping[str, Path]


def run(*command: str | Path, cwd: Path, status: int = 0) -> str:
    """Run a command and give what it printed; anything but the expected exit status ends the program."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != status:
        sys.exit(f"{' '.join(map(str, command))}\nexited {done.returncode}, not {status}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


_BUILD = """
import importlib, os, sys, tomllib
out, *projects = sys.argv[1:]
for project in projects:
    os.chdir(project)
    with open("pyproject.toml", "rb") as file:
        backend = tomllib.load(file)["build-system"]["build-backend"]
    importlib.import_module(backend).build_wheel(out)
"""
"""Calls each project's backend as pip does, all in one process: a process of its own takes longer than a wheel."""


def build_wheels(out: Path, projects: Iterable[Path]) -> Wheels:
    """Build projects; `{distribution: wheel}`."""
    out.mkdir(exist_ok=True)
    run(sys.executable, "-c", _BUILD, out, *projects, cwd=out)
    return find_wheels(out)


def find_wheels(folder: Path) -> Wheels:
    """The wheels in a folder, `{distribution: wheel}`."""
    return {canonicalize_name(wheel.name.split("-")[0]): wheel for wheel in sorted(folder.glob("*.whl"))}


def extension_projects() -> list[Path]:
    """The extensions of the checkout."""
    return sorted(project.parent for project in ROOT.glob("extensions/*/pyproject.toml"))


def plugin_projects() -> list[Path]:
    """The plugins of the checkout."""
    return sorted(project.parent for project in ROOT.glob("plugins/*/pyproject.toml"))


@dataclass(frozen=True)
class Environment:
    """A virtual environment, used from its own folder."""

    root: Path

    @property
    def bin(self) -> Path:
        """Where its programs are."""
        return self.root / "bin"

    @property
    def site_packages(self) -> Path:
        """Where its packages are."""
        return Path(sysconfig.get_path("purelib", vars={"base": str(self.root)}))

    def python(self, *arguments: str | Path, status: int = 0) -> str:
        """Run its interpreter."""
        return run(self.bin / "python", *arguments, cwd=self.root, status=status)

    def corellm(self, *arguments: str | Path, status: int = 0) -> str:
        """Run its `corellm`."""
        return run(self.bin / "corellm", *arguments, cwd=self.root, status=status)

    def pip(self, *arguments: str | Path) -> str:
        """Run the pip of the environment that runs this on it: it has none itself."""
        return run(sys.executable, "-m", "pip", "--python", self.bin / "python", *arguments, cwd=self.root)


def installed(where: Path, names: Iterable[str], wheels: Wheels) -> Environment:
    """An environment into which the named distributions were installed, by pip."""
    environment, own = _linked(where, names, wheels)
    environment.pip("install", "--no-index", "--no-deps", *own)
    environment.pip("check")
    return environment


def unpacked(where: Path, names: Iterable[str], wheels: Wheels) -> Environment:
    """An environment with the contents of the named distributions: in a moment, without programs.

    What is not among the wheels is as it is here: in the checkout the core, if it was installed from there.
    """
    environment, own = _linked(where, names, wheels)
    for wheel in own:
        with ZipFile(wheel) as archive:
            archive.extractall(environment.site_packages)
    return environment


def _linked(where: Path, names: Iterable[str], wheels: Wheels) -> tuple[Environment, list[Path]]:
    """An environment with all that the named ones need but ours, and the wheels of ours that are still lacking."""
    venv.create(where)
    environment = Environment(where)
    packages = _required(names, wheels)
    if "corellm" not in packages:
        sys.exit(f"{', '.join(names)}: does not ask for corellm")
    for name, package in packages.items():
        if name not in wheels:
            _link(package, environment.site_packages)
    return environment, [wheels[name] for name in packages if name in wheels]


def _required(names: Iterable[str], wheels: Wheels) -> dict[str, Distribution]:
    """The named distributions and all that they ask for, `{name: distribution}`: ours as the wheels have them."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(name) for name in names]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in found:
            own = distributions(path=[str(wheels[name])]) if name in wheels else [distribution(name)]
            found[name] = next(iter(own))
        for extra in {"", *requirement.extras}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            further = map(Requirement, found[name].requires or ())
            waiting += [r for r in further if r.marker is None or r.marker.evaluate({"extra": extra})]
    return found


def _link(package: Distribution, site_packages: Path) -> None:
    """Link what a distribution has at the top: packages, modules, folders of libraries, metadata."""
    entries = {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}
    for entry in entries:
        if not (site_packages / entry).exists():  # distributions may share a namespace
            (site_packages / entry).symlink_to(str(package.locate_file(entry)))
