"""Runs the commands that pages show, in the cheapest way with the same result; checks those that cannot be run.

Knows all kinds of commands; a page with any other fails.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from packaging.requirements import Requirement
from pydantic import BaseModel

from corellm.cli import build_parser, main
from corellm.plugin.extensions import load_extensions
from corellm_server.commands.arguments import configured
from corellm_server.requests.adapters import LoadAdapterRequest, UnloadAdapterRequest
from corellm_server.requests.chat import ChatRequest
from tests.docs.stand_ins import write_published

ROOT = Path(__file__).resolve().parents[2]
_MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", _MAKEFILE, re.MULTILINE))
VARIABLES = set(re.findall(r"\$\([A-Z]+\)", _MAKEFILE))
PINNED = {
    Requirement(line).name: Requirement(line)
    for line in (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith(("#", "-e"))
}
BODIES = {"/load_lora_adapter": LoadAdapterRequest, "/unload_lora_adapter": UnloadAdapterRequest}
"""Bodies by the end of a URL; those of others are chats."""
TOOLS = {"cat", "cp", "diff", "echo", "find", "grep", "head", "ls", "mkdir", "mv", "rm", "sed", "sort", "tail", "tree"}
"""Run by bash as they are."""


class _Terminal(io.StringIO):
    """Standard input of a terminal on which nothing is typed."""

    def isatty(self) -> bool:
        return True


class Shell:
    """A shell in a reader's folder.

    Args:
        here: the folder.
        whole: run slow rules of contracts, too.
    """

    def __init__(self, here: Path, *, whole: bool = False) -> None:
        self._here = here
        self._whole = whole
        self.cwd = here
        self._installed = here / ".installed"
        self._paths: list[str] = []

    def run(self, command: str, where: str, *, expected: str = "") -> str:
        """Run one command.

        Args:
            command: a line.
            where: it stands, for messages.
            expected: what the page says it prints; only if that tells of an error or a failure may it fail.

        Returns:
            What it printed, errors included; `""` if it is only checked.

        Raises:
            AssertionError: it failed, is unknown, or names what is not there.
        """
        words = [word.removeprefix(".venv/bin/") for word in shlex.split(command, comments=True)]
        stdin: TextIO | None = None
        if "|" in words and "corellm" in words:
            left, words = words[: words.index("|")], words[words.index("|") + 1 :]
            stdin = io.StringIO(self._bash(shlex.join(left))[1])
        elif "<" in words and words[0] == "corellm":
            file = self.cwd / words[words.index("<") + 1]
            words = words[: words.index("<")]
            stdin = io.TextIOWrapper(io.BytesIO(file.read_bytes()))
        run = self._kind(words)
        assert run is not None, f"{where}: no kind of command begins with {words[0]!r}; see tests/docs/shell.py"
        status, printed = run() if stdin is None else self._corellm(words[1:], stdin)
        may_fail = re.search("error|fail", expected, re.IGNORECASE)
        assert status == 0 or may_fail, f"{where}: `{command}` ended with {status}:\n{printed}"
        return printed

    def _kind(self, words: list[str]) -> Callable[[], tuple[int, str]] | None:
        name, rest = words[0], words[1:]
        if words[:2] == ["corellm", "serve"]:
            return lambda: self._check_serving(rest)
        if name == "curl" and "-d" in rest:
            return lambda: self._check_request(words)
        if name == "corellm":
            return lambda: self._corellm(rest, _Terminal())
        if name == "make":
            return lambda: self._check_targets(rest)
        if name in ("pip", "python") and "install" in rest[:3]:
            return lambda: self._install(rest[rest.index("install") + 1 :])
        if name == "python" and rest[:2] == ["-m", "build"]:
            return lambda: self._check_project()
        if name == "python":
            return lambda: self._python(rest)
        if name == "pytest":
            return lambda: self._pytest(rest)
        if name == "hf":
            return lambda: self._download(rest)
        if name == "cd":
            return lambda: self._change_to(rest[0])
        if name in TOOLS:
            return lambda: self._bash(shlex.join(words).replace("'|'", "|").replace("'>'", ">").replace("'&&'", "&&"))
        return None

    # --- kinds of commands ------------------------------------------------------------------------------------------

    def _corellm(self, arguments: list[str], stdin: TextIO) -> tuple[int, str]:
        """Run in this process, because starting another takes as long as ten short outputs."""
        before, sys.stdin = sys.stdin, stdin
        try:
            return self._call(lambda: main(arguments))
        finally:
            sys.stdin = before

    def _check_serving(self, arguments: list[str]) -> tuple[int, str]:
        """Check only the options: it would not end."""
        args = build_parser().parse_args(["serve", *arguments[1:]])
        with contextlib.chdir(self.cwd):
            configured(args)
        return 0, ""

    def _check_request(self, words: list[str]) -> tuple[int, str]:
        """Check only that the body is one that the server takes."""
        kind: type[BaseModel] = next((BODIES[url] for url in BODIES if words[1].endswith(url)), ChatRequest)
        kind.model_validate(json.loads(words[words.index("-d") + 1]))
        return 0, ""

    def _python(self, arguments: list[str]) -> tuple[int, str]:
        """Run `-c CODE`, `-m MODULE ...` or `FILE ...` in this process."""
        if arguments[0] == "-c":
            return self._call(lambda: exec(arguments[1], {"__name__": "__main__"}))
        is_module = arguments[0] == "-m"
        target, *rest = arguments[1:] if is_module else arguments
        run = runpy.run_module if is_module else runpy.run_path
        before, sys.argv = sys.argv, [target, *rest]
        imported = sys.modules.pop(target, None)  # by another test; runpy warns of such a one
        try:
            return self._call(lambda: run(target, run_name="__main__") and None)
        finally:
            sys.argv = before
            if imported is not None:
                sys.modules[target] = imported

    def _call(self, function: Callable[[], int | None]) -> tuple[int, str]:
        """Return a function's return or exit status, and what it prints; the page's own modules are imported anew."""
        for name in [name for name, module in sys.modules.items() if self._is_mine(module)]:
            del sys.modules[name]
        printed = io.StringIO()
        try:
            with contextlib.chdir(self.cwd), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                status = function()
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) or ended.code is None else 1
        return status or 0, printed.getvalue()

    def _is_mine(self, module: object) -> bool:
        return str(getattr(module, "__file__", None) or "").startswith(f"{self._here}{os.sep}")

    def _check_project(self) -> tuple[int, str]:
        """Check only that there is a project: its wheel was built when it was installed."""
        assert (self.cwd / "pyproject.toml").is_file(), "python -m build: there is no pyproject.toml"
        return 0, ""

    def _pytest(self, arguments: list[str]) -> tuple[int, str]:
        """Run the tests of the page's project; of those of the installed plugins, which run anyway, list the names."""
        less = [] if self._whole else ["--collect-only" if "--pyargs" in arguments else "--contract-quick"]
        return self._process([sys.executable, "-m", "pytest", *arguments, *less])

    def _process(self, command: list[str]) -> tuple[int, str]:
        paths = os.pathsep.join([*self._paths, os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
        done = subprocess.run(
            command, cwd=self.cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=3600, env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "100"},
        )  # fmt: skip
        return done.returncode, done.stdout

    def _bash(self, line: str) -> tuple[int, str]:
        return self._process(["bash", "-c", line])

    def _change_to(self, folder: str) -> tuple[int, str]:
        self.cwd = self.cwd / folder
        assert self.cwd.is_dir(), f"cd {folder}: there is no such folder"
        return 0, ""

    def _download(self, words: list[str]) -> tuple[int, str]:
        """Write the stand-in for the published checkpoint."""
        command, name, option, folder = words
        assert (command, option) == ("download", "--local-dir"), f"not hf download: {shlex.join(words)}"
        write_published(name, self.cwd / folder)
        return 0, ""

    @staticmethod
    def _check_targets(words: list[str]) -> tuple[int, str]:
        """Check that the Makefile has the targets, and the variables that are set: `NAME=value`."""
        named = {f"$({name})" if sign else name for name, sign, _ in (word.partition("=") for word in words)}
        unknown = named - TARGETS - VARIABLES
        assert not unknown, f"the Makefile has no {', '.join(unknown)}"
        return 0, ""

    # --- pip --------------------------------------------------------------------------------------------------------

    def _install(self, words: list[str]) -> tuple[int, str]:
        """Install projects that the page made; check that others exist, as they are installed already."""
        editable, status, printed = False, 0, ""
        for word in words:
            if word in ("-e", "--editable", "-U", "--upgrade"):
                editable |= word.startswith(("-e", "--e"))
                continue
            if word == "-r":
                continue
            path, _, extras = word.partition("[")
            if not path.startswith((".", "/")) and "/" not in path and not path.endswith((".txt", ".whl")):
                _check_requirement(word)
                continue
            target = self.cwd / path
            assert target.exists(), f"pip install {word}: there is no {path}"
            _check_extras(target, extras.rstrip("]"))
            if self._here.resolve() in target.resolve().parents:
                status, printed = self._install_into_folder(target, editable=editable)
        return status, printed

    def _install_into_folder(self, project: Path, *, editable: bool) -> tuple[int, str]:
        shutil.rmtree(self._installed, ignore_errors=True)
        done = self._process(
            [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation",
             "--disable-pip-version-check", "--no-warn-script-location", "--target", str(self._installed), str(project)]
        )  # fmt: skip
        source = project / "src" if (project / "src").is_dir() else project
        self._paths = [*([str(source)] if editable else []), str(self._installed)]
        sys.path[:0] = self._paths
        importlib.invalidate_caches()
        load_extensions.cache_clear()
        return done

    def leave(self) -> None:
        """Remove what was installed from this process."""
        for name in [name for name, module in sys.modules.items() if self._is_mine(module)]:
            del sys.modules[name]
        importlib.invalidate_caches()
        load_extensions.cache_clear()


def _check_requirement(word: str) -> None:
    """Check a distribution from an index: this project uses it, and a version equals the pinned one."""
    requirement = Requirement(word)
    known = {**PINNED, **_dependencies()}
    assert requirement.name in known, f"pip install {word}: no part of this project uses it"
    pin = PINNED.get(requirement.name)
    assert pin is None or requirement.specifier in ("", pin.specifier), f"pip install {word}: pinned to {pin}"


def _dependencies() -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    return {Requirement(line).name: Requirement(line) for line in listed}


def _check_extras(target: Path, extras: str) -> None:
    if extras:
        project = tomllib.loads((target / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        unknown = {extra.strip() for extra in extras.split(",")} - set(project["optional-dependencies"])
        assert not unknown, f"{target.name} has no extra {', '.join(unknown)}"
