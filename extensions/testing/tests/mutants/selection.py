"""Which mutants a run of the tests examines: those that a change touches, and the first of each part.

Unchanged copies are examined of those plugins, and always of one.

A mutant is touched where its mistake, its plugin's package, its rule's module or what that imports from
`corellm_testing` differs from what it was when the mutant was last seen caught: `caught.txt` has a fingerprint of each.
Changes of the engine alone touch none; `--mutants all`, which `make mutants` gives, examines every one.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from extensions.testing.tests.mutants.mutant import Mutant

CAUGHT = Path(__file__).with_name("caught.txt")
_ROOM = "corellm_testing"
_left_out = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("corellm's mutants")
    group.addoption("--mutants", choices=("touched", "all"), default="touched", help="which to examine")
    group.addoption("--mutants-caught", action="store_true", help=f"write those that were caught to {CAUGHT.name}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the mutants that are not touched, and unchanged copies of plugins without any that is."""
    examined = [item for item in items if "mutant" in _parameters(item)]
    if not examined or config.getoption("--mutants") == "all":
        return
    from extensions.testing.tests.mutants.mutants import CONTRACTS, MUTANTS, PARTS

    always = {mutants[0] for mutants in PARTS.values()}
    known = fingerprints()
    changed = {mutant for mutant in MUTANTS if touched(mutant, known)}
    left_out = {item for item in examined if _mutant(item) not in always | changed}
    config.stash[_left_out] = len(left_out)
    copied = {CONTRACTS[0], *(mutant.contract for mutant in changed)}
    left_out |= {item for item in items if _parameters(item).get("contract", CONTRACTS[0]) not in copied}
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that prints how many were left out: each process of pytest-xdist leaves out the same."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["mutants"] = session.config.stash.get(_left_out, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over the number."""
    node.config.stash[_left_out] = getattr(node, "workeroutput", {}).get("mutants", 0)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Write what was left out; with the option, write which mutants were caught."""
    if left_out := config.stash.get(_left_out, 0):
        terminalreporter.write_line(
            f"{left_out} mutants were not examined: nothing that they depend on has changed since they were seen "
            f"caught; `make mutants` examines all"
        )
    if config.getoption("--mutants-caught"):
        properties = [dict(report.user_properties) for report in terminalreporter.getreports("passed")]
        record({tuple(found["mutant"][:2]) for found in properties if "mutant" in found})


def record(caught: set[tuple[str, ...]]) -> None:
    """Write the fingerprints of mutants that were caught just now, by family and mistake; those of others stay."""
    from extensions.testing.tests.mutants.mutants import MUTANTS

    known = fingerprints()
    lines = [
        f"{fingerprint(mutant) if (mutant.family, mutant.wrong) in caught else known[_name(mutant)]} {_name(mutant)}\n"
        for mutant in MUTANTS
        if (mutant.family, mutant.wrong) in caught or _name(mutant) in known
    ]
    CAUGHT.write_text("".join(lines), encoding="utf-8")


def fingerprints() -> dict[str, str]:
    """Return the fingerprint of each mutant as it was when last seen caught, by `family: mistake`."""
    if not CAUGHT.exists():
        return {}
    lines = [line.partition(" ") for line in CAUGHT.read_text(encoding="utf-8").splitlines()]
    return {name: found for found, _, name in lines}


def touched(mutant: Mutant, known: dict[str, str]) -> bool:
    """Whether a mutant was not seen caught as it is now."""
    return known.get(_name(mutant)) != fingerprint(mutant)


def fingerprint(mutant: Mutant) -> str:
    """Return a digest of all that a mutant's examination reads, but for the engine and the libraries."""
    from corellm_testing import AdapterContract
    from corellm_testing.rules import rules_of

    rule = rules_of(AdapterContract)[mutant.rule.partition("[")[0]]
    parts = [
        repr(mutant).encode(),
        _package(mutant.package),
        *(_source(name) for name in sorted(_room(rule.__module__))),
    ]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:16]


@cache
def _package(name: str) -> bytes:
    """Return a digest of a package's Python files."""
    folder = Path(str(_spec(name).origin)).parent
    files = sorted(folder.rglob("*.py"))
    parts = [str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes() for file in files]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()


@cache
def _room(module: str) -> frozenset[str]:
    """Return a module of the contract's room and those of the room that it imports, however indirectly."""
    found, new = set[str](), {module}
    while new:
        name = new.pop()
        found.add(name)
        new |= _imports(name) - found
    return frozenset(found)


@cache
def _imports(module: str) -> frozenset[str]:
    """Return the modules of the contract's room that a module's source imports."""
    named = [node for node in ast.walk(ast.parse(_source(module))) if isinstance(node, ast.ImportFrom)]
    found = {node.module for node in named if node.module and node.module.startswith(f"{_ROOM}.")}
    return frozenset(found)


@cache
def _source(module: str) -> bytes:
    return Path(str(_spec(module).origin)).read_bytes()


def _spec(name: str) -> Any:
    spec = importlib.util.find_spec(name)
    assert spec is not None, name
    return spec


def _parameters(item: pytest.Item) -> dict[str, Any]:
    found: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return found


def _mutant(item: pytest.Item) -> Mutant:
    mutant: Mutant = _parameters(item)["mutant"]
    return mutant


def _name(mutant: Mutant) -> str:
    return f"{mutant.family}: {mutant.wrong}"
