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

from corellm.config import suggestion
from corellm.errors import ConfigError

_SIZES = ("_memory", "_bytes")
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
    """Those of the given arguments that are fields of the classes."""
    names = [field.name for config in configs for field in fields(config)]
    return {name: given[name] for name in names if name in given}


def read_config(path: str, configs: Iterable[type]) -> dict[str, Any]:
    """Arguments from a YAML file: options by name, with `-` or `_`.

    Raises:
        ConfigError: the file cannot be read, or has an unknown name.
    """
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
        read = yaml.safe_load(text) or {}
        repeated = _repeated(yaml.compose(text, yaml.SafeLoader))
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(read, dict):
        raise ConfigError(f"--config {path} must have lines like `port: 8000`")
    if repeated:
        raise ConfigError(f"--config {path}: {repeated!r:.100} is there twice; leave one out")
    known = {field.name: hints[field.name] for c in configs for hints in [get_type_hints(c)] for field in fields(c)}
    given = {str(name).replace("-", "_"): value for name, value in read.items()}
    for name, value in given.items():
        if name not in known:
            raise ConfigError(f"--config {path}: unknown option {name!r:.100}{suggestion(name, known)}")
        try:
            given[name] = _of_file(name, value, known[name])
        except argparse.ArgumentTypeError as error:
            raise ConfigError(f"--config {path}: {name}: {error}") from error
    return given


def _repeated(node: Any) -> str | None:
    """A key that a YAML mapping, or one in it, has twice; `-` and `_` are the same. YAML would take the last one."""
    if node is None or isinstance(node.value, str):
        return None
    pairs = [item if isinstance(item, tuple) else (None, item) for item in node.value]
    names = [str(key.value).replace("-", "_") for key, _ in pairs if key is not None]
    for name in names:
        if names.count(name) > 1:
            return name
    return next(filter(None, (_repeated(value) for _, value in pairs)), None)


def _of_file(name: str, value: Any, hint: Any) -> Any:
    """An option's value as a file has it: a size may have a unit, everything else is of the option's type.

    Raises:
        argparse.ArgumentTypeError: it is of another one. Names are not repeated: they may be keys.
    """
    kinds = _kinds(hint)
    if isinstance(value, str) and name.endswith(_SIZES):
        return _memory(value)
    if value is None and type(None) in get_args(hint):
        return None
    allowed, words = next((allowed, words) for kind, allowed, words in _IN_FILES if kind in kinds)
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        raise argparse.ArgumentTypeError(f"must be {words}" + ("" if Collection in kinds else f", got {value!r:.100}"))
    return value


_IN_FILES: Sequence[tuple[Any, tuple[type, ...], str]] = (
    (bool, (bool,), "true or false"),
    (Mapping, (dict,), "a mapping, like {image: 2}"),
    (Collection, (list, str), "a list of names"),
    (Literal, (str,), "text"),
    (float, (int, float), "a number"),
    (int, (int,), "a whole number"),
    (str, (str,), "text"),
)
"""What a file may have for an option of a type, and its name."""


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
    return (" ".join(words.split()).replace("`", "") + shown).replace("%", "%%")


def _shown(name: str, default: Any) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    if name.endswith(_SIZES):
        return f"{default >> 20}M"
    return ", ".join(default) if isinstance(default, tuple) else f"{default}".removesuffix(".0")


def _reading(name: str, hint: Any) -> dict[str, Any]:
    """How an option of a type is read."""
    origins = _kinds(hint)
    if bool in origins:
        return {"action": argparse.BooleanOptionalAction}
    if Mapping in origins:
        return {"type": json_object, "metavar": "JSON"}
    if Collection in origins:
        return {"type": _names, "action": "extend", "metavar": "NAME[,NAME]"}
    if Literal in origins:
        return {"choices": get_args(hint)}
    if name.endswith(_SIZES):
        return {"type": _memory, "metavar": "SIZE"}
    return next(reading for kind, reading in _READINGS if kind in origins)


def _kinds(hint: Any) -> set[Any]:
    """The types that a type hint is one of, without their arguments."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return {get_origin(kind) or kind for kind in kinds}


_READINGS: Sequence[tuple[type, dict[str, Any]]] = (
    (float, {"type": float, "metavar": "NUMBER"}),
    (int, {"type": int, "metavar": "N"}),
    (str, {"metavar": "TEXT"}),
)


def _memory(text: str) -> int:
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
        raise argparse.ArgumentTypeError(f"not JSON: {text!r}") from error
    if not isinstance(arguments, dict):
        raise argparse.ArgumentTypeError(f"not a JSON object: {text!r}")
    return arguments
