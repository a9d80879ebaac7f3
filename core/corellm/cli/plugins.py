"""`corellm plugins`: what is installed, from metadata and the adapters' own words, without torch."""

from __future__ import annotations

import argparse
import json
import textwrap
from dataclasses import asdict, dataclass

from corellm.errors import PluginError
from corellm.hookspecs import CONTRACT_VERSION
from corellm.plugins import AdapterEntry, contract_versions, installed_adapters


@dataclass
class _Row:
    """One installed distribution."""

    distribution: str
    version: str
    architectures: list[str]
    contract: str
    error: str | None = None


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "plugins",
        help="list installed plugins, the architectures they serve, and what is wrong with broken ones",
        description="List installed plugins: distribution, version, contract version, architectures. "
        "A broken plugin is shown with its traceback, and the exit status is 1.",
    )
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the list; 1 if a plugin is broken."""
    rows = _rows(installed_adapters())
    if args.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        _print_table(rows)
    return int(any(row.error for row in rows))


def _rows(entries: list[AdapterEntry]) -> list[_Row]:
    rows: dict[str, _Row] = {}
    for entry in entries:
        contract, error = "?", None
        try:
            versions = contract_versions(entry.load())
            contract = str(versions[0]) if len(versions) == 1 else f"{versions[0]}-{versions[-1]}"
        except PluginError as broken:
            error = str(broken)
        row = rows.setdefault(entry.distribution, _Row(entry.distribution, entry.version, [], contract))
        row.architectures.append(entry.architecture)
        row.error = row.error or error
    return list(rows.values())


def _print_table(rows: list[_Row]) -> None:
    if not rows:
        print("no plugins installed; each model family is one, e.g. pip install corellm-llava")
        return
    table = [("DISTRIBUTION", "VERSION", "CONTRACT", "ARCHITECTURES")]
    for row in rows:
        contract = "broken" if row.error else row.contract
        table.append((row.distribution, row.version, contract, ", ".join(row.architectures)))
    widths = [max(len(line[column]) for line in table) for column in range(3)]
    for line in table:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[3]]))
    for row in rows:
        if row.error:
            print(f"\n{row.distribution} is broken:\n{textwrap.indent(row.error, '  ')}")
    print(f"\nthis corellm speaks contract {CONTRACT_VERSION}")
