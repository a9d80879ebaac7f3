"""Run the tests of parity and the kinds of models on releases beside the installed ones: `make transformers-versions`.

Each release is tried in an environment that differs by it alone, and the page of releases says what came of it.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from packaging.version import Version
from tqdm import tqdm

from tests.kinds.__main__ import PAGE as PAGE_OF_KINDS
from tests.kinds.__main__ import outcomes_of
from tests.releases.environment import OLDEST, ROOT, Environment, environment_of, installed, releases
from tests.releases.outcome import Counted, compared, is_as_meant, kinds, parity

PAGE = ROOT / "docs" / "run" / "releases.md"
_HEAD = """# Releases

corellm is developed on transformers 5.24, torch 2.13 and Python 3.11. `make transformers-versions` tries the other
releases that it may be installed with, each in an environment that differs by it alone; a row is what came of that.

- *parity*: tests that compare greedy outputs with those of transformers' `generate` of that release, of every plugin
  and of text models: in chunks, where requests are preempted, with states of recurrent layers.
- *kinds*: [kinds of models](kinds.md) by the generic adapter, with one setting each; all that the release has, or some.
- *what differs*: tests that fail, and kinds that do not pass though the page of kinds says so. A kind that is refused
  there is refused at load, with that reason.

A release that is newer than all of these gives a warning at load. What it changes in a model is met by the checks at
load, which compare the model's own forward pass with the engine's and refuse what differs.

"""
_TABLE = "| release | parity | kinds | what differs |\n|---|---|---|---|\n"


def row(environment: Environment, tested: Counted, tried: Counted) -> str:
    """Return a line of the table."""
    differs = "<br>".join(_plain(reason) for reason in (*tested.failed, *tried.failed))
    return f"| {environment.name} | {tested} | {tried} | {differs} |"


def page(rows: Sequence[str]) -> str:
    """Return the page: transformers, then torch, then Python, the oldest release first."""
    libraries = list(OLDEST)

    def order(line: str) -> tuple[int, Version]:
        library, release = name_of(line).split()
        return libraries.index(library), Version(release)

    return _HEAD + _TABLE + "".join(f"{line}\n" for line in sorted(rows, key=order))


def rows_of(text: str) -> dict[str, str]:
    """Return `{name of an environment: its line}` of a page."""
    lines = re.findall(rf"^\| (?:{'|'.join(OLDEST)}) \S+ \|.*$", text, re.MULTILINE)
    return {name_of(line): line for line in lines}


def name_of(line: str) -> str:
    """Return the environment's name in a line of the table."""
    return line.split(" | ")[0].removeprefix("| ")


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def wanted_releases(given: Sequence[str]) -> list[tuple[str, str]]:
    """Return libraries and releases that are asked for: `torch` for all of torch's, `torch==2.14.1` for one."""
    found = []
    for one in given or list(OLDEST):
        library, _, release = one.partition("==")
        if library not in OLDEST:
            raise SystemExit(f"{one!r}: give {', '.join(OLDEST)}, or one release of them as in transformers==5.20.2")
        found += [(library, known) for known in ([release] if release else others(library))]
    return found


def others(library: str) -> list[str]:
    """Return the releases of a library; the installed one, which is that of all environments but some, once in all."""
    return [release for release in releases(library) if library == "transformers" or release != installed(library)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Try the releases, one after another."""
    parser = argparse.ArgumentParser(prog="python -m tests.releases", description=__doc__)
    parser.add_argument("releases", nargs="*", help="a library, or a release of it: transformers==5.20.2; all if none")
    parser.add_argument("--kinds", nargs="+", default=(), help="model types to try; all of them if none")
    parser.add_argument("--libraries", type=Path, help="a folder that `python -m tests.kinds.libraries` made")
    parser.add_argument("--environments", type=Path, default=ROOT / ".venv" / "releases", help="where they are made")
    parser.add_argument("--kernels", default="", help="CORELLM_CPU_KERNELS for the tests of parity; empty for the best")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--write", action="store_true", help="write what came of them into the page")
    given = parser.parse_args(arguments)
    stated = outcomes_of(PAGE_OF_KINDS.read_text(encoding="utf-8"))
    failed = []
    for library, release in tqdm(wanted_releases(given.releases), unit="release"):
        environment = environment_of(library, release, given.environments.resolve())
        if not is_as_meant(environment):
            raise SystemExit(f"{environment.name}: another release is imported")
        libraries = given.libraries and library != "torch" and given.libraries.resolve()
        tested = parity(environment, given.jobs, given.kernels)
        tried = kinds(environment, given.kinds, given.jobs, libraries or None)
        counted = compared(tried, stated, with_libraries=bool(libraries))
        line = row(environment, tested, counted)
        tqdm.write(line.replace("<br>", "\n  "))
        failed += tested.failed + counted.failed
        if given.write:
            known = rows_of(PAGE.read_text(encoding="utf-8")) if PAGE.is_file() else {}
            PAGE.write_text(page(list({**known, environment.name: line}.values())), encoding="utf-8")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
