"""Options of a command from the fields of configuration classes, with the fields' documentation as their help.

Only options that were given are in the parsed arguments: defaults are the classes' own. Knows types of fields; knows
neither commands nor what the fields mean.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

SIZES = ("_memory", "_bytes")
"""Names of options with a number of bytes end so."""


def add_fields(parser: argparse.ArgumentParser, title: str, config: type, *, skip: Collection[str] = ()) -> None:
    """Add an option for each field of a dataclass, in a group of their own."""
    group = parser.add_argument_group(title)
    hints, documented = get_type_hints(config), class_docs(config)
    for field in fields(config):
        if field.name not in skip:
            group.add_argument(
                f"--{field.name.replace('_', '-')}", dest=field.name, default=argparse.SUPPRESS,
                help=_help(field, documented[field.name][1]), **_reading(field.name, hints[field.name]),
            )  # fmt: skip


def given_fields(given: Mapping[str, Any], configs: Iterable[type]) -> dict[str, Any]:
    """Return the given arguments that are fields of the classes."""
    names = [field.name for config in configs for field in fields(config)]
    return {name: given[name] for name in names if name in given}


def class_docs(config: type) -> dict[str, tuple[str, str]]:
    """Return `{field: (annotation, docstring)}` of a dataclass whose fields are followed by docstrings."""
    return _docs_in(str(sys.modules[config.__module__].__file__))[config.__name__]


@lru_cache
def _docs_in(file: str) -> dict[str, dict[str, tuple[str, str]]]:
    classes = [node for node in ast.parse(Path(file).read_bytes()).body if isinstance(node, ast.ClassDef)]
    return {
        node.name: {
            field.target.id: (ast.unparse(field.annotation), words.value.value)
            for field, words in zip(node.body, node.body[1:], strict=False)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            and isinstance(words, ast.Expr) and isinstance(words.value, ast.Constant)
            and isinstance(words.value.value, str)
        }
        for node in classes
    }  # fmt: skip


def _help(field: Field[Any], words: str) -> str:
    default = field.default if field.default is not MISSING else None
    is_told = default not in (None, (), "")
    shown = f" (default: {_shown(field.name, default)})" if is_told else ""
    words = re.sub(r"\bNone(?: for|:)", "default:", " ".join(words.split()))  # on a command line there is no None
    return (words.replace("`", "") + shown).replace("%", "%%")


def _shown(name: str, default: Any) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    if name.endswith(SIZES):
        return f"{default >> 20}M"
    return ", ".join(default) if isinstance(default, tuple) else f"{default}".removesuffix(".0")


def _reading(name: str, hint: Any) -> dict[str, Any]:
    """How an option of a type is read."""
    origins = kinds_of(hint)
    if bool in origins:
        return {"action": argparse.BooleanOptionalAction}
    if Mapping in origins:
        return {"type": json_object, "metavar": "JSON"}
    if Collection in origins:
        return {"type": _names, "action": "extend", "metavar": "NAME[,NAME]"}
    if Literal in origins:
        return {"choices": get_args(hint)}
    if name.endswith(SIZES):
        return {"type": size, "metavar": "SIZE"}
    return next(reading for kind, reading in _READINGS if kind in origins)


def kinds_of(hint: Any) -> set[Any]:
    """The types that a type hint is one of, without their arguments."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return {get_origin(kind) or kind for kind in kinds}


_READINGS: Sequence[tuple[type, dict[str, Any]]] = (
    (float, {"type": float, "metavar": "NUMBER"}),
    (int, {"type": int, "metavar": "N"}),
    (str, {"metavar": "TEXT"}),
)


def size(text: str) -> int:
    """Bytes, as a number or with a unit of 1024: 512M, 2G, 1.5GiB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"not a size: {text!r}; write bytes, or 512M, 2G")
    number, unit = found.groups()
    return int(float(number) * 1024 ** " KMGT".index(unit.upper() or " "))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def json_object(text: str) -> dict[str, Any]:
    """Read an option's JSON object."""
    try:
        arguments = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f'not JSON: {text!r}; write it as in \'{{"key": "value"}}\'') from error
    if not isinstance(arguments, dict):
        raise argparse.ArgumentTypeError(f"not a JSON object: {text!r}")
    return arguments
