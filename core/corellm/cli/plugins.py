"""`corellm plugins`: list installed plugins, from their metadata and adapters, without torch."""

from __future__ import annotations

import argparse
import json
import textwrap
from dataclasses import asdict, dataclass, field

from corellm.errors import PluginError
from corellm.hookspecs import CONTRACT_VERSION
from corellm.plugin.adapters import AdapterEntry, installed_adapters, installed_fallbacks
from corellm.plugin.contract import contract_versions
from corellm.plugin.extensions import installed_extensions


@dataclass
class _Row:
    """One installed distribution."""

    distribution: str
    version: str
    architectures: list[str]
    contract: str
    """Contract versions of its adapters; empty where it has none."""
    error: str | None = None
    extensions: list[str] = field(default_factory=list)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "plugins",
        help="list installed plugins, what they serve or extend, and what is wrong with broken ones",
        description="List installed plugins: distribution, version, contract version, architectures; then extensions. "
        "A broken plugin is shown with its traceback, and the exit status is 1.",
    )
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the list; 1 if a plugin is broken."""
    rows = _rows([*installed_adapters(), *installed_fallbacks()])
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
    for extension in installed_extensions():
        name = extension.distribution
        row = rows.setdefault(name, _Row(name, extension.version, [], ""))
        row.extensions.append(extension.name)
        try:
            extension.load()
        except PluginError as broken:
            row.error = row.error or str(broken)
    return list(rows.values())


def _print_table(rows: list[_Row]) -> None:
    _print_columns(
        ("DISTRIBUTION", "VERSION", "CONTRACT", "ARCHITECTURES"),
        *(
            (row.distribution, row.version, "broken" if row.error else row.contract, ", ".join(row.architectures))
            for row in rows
            if row.architectures
        ),
    )
    if all(name.startswith("*") for row in rows for name in row.architectures):
        print("no plugins installed; each multimodal family is one, e.g. in a checkout: pip install ./plugins/llava")
    print()
    _print_columns(
        ("DISTRIBUTION", "VERSION", "EXTENSIONS"),
        *((row.distribution, row.version, ", ".join(row.extensions)) for row in rows if row.extensions),
    )
    for row in rows:
        if row.error:
            print(f"\n{row.distribution} is broken:\n{textwrap.indent(row.error, '  ')}")
    print(f"\nthis corellm speaks contract {CONTRACT_VERSION}")


def _print_columns(*table: tuple[str, ...]) -> None:
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
