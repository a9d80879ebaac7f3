"""Options of a command from a YAML file, where they have the names of the configuration classes' fields."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from corellm.cli.fields import SIZES, kinds_of, size
from corellm.config import suggestion
from corellm.errors import ConfigError
from corellm_server.commands.absent_flags import absent_flag, not_an_option


def read_config(path: str) -> dict[str, Any]:
    """What a YAML file has: options by name, with `-` or `_`, which are not checked yet.

    Raises:
        ConfigError: the file cannot be read, or has a name twice.
    """
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
        read = yaml.safe_load(text) or {}
        repeated = _repeated(yaml.compose(text, yaml.SafeLoader))
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}") from error
    except RecursionError:
        raise ConfigError(f"--config {path} is nested too deeply") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(read, dict):
        raise ConfigError(f"--config {path} must have lines like `port: 8000`")
    if repeated:
        raise ConfigError(f"--config {path}: {repeated!r:.100} is there twice; leave one out")
    return read


def checked_options(place: str, read: Mapping[Any, Any], configs: Iterable[type]) -> dict[str, Any]:
    """Options of a file as the classes take them.

    Args:
        place: of the options, for errors.
        read: options by name, with `-` or `_`.
        configs: the classes.

    Raises:
        ConfigError: a name is unknown, or a value of another type.
    """
    known = {field.name: hints[field.name] for c in configs for hints in [get_type_hints(c)] for field in fields(c)}
    given = {str(name).replace("-", "_"): value for name, value in read.items()}
    for name, value in list(given.items()):
        absent = absent_flag(name) if name not in known else None
        if absent is not None and absent.accepts(value):
            del given[name]
            continue
        if absent is not None:
            raise ConfigError(f"{place}: {not_an_option(name, absent)}")
        if name not in known:
            raise ConfigError(f"{place}: unknown option {name!r:.100}{suggestion(name, known)}")
        try:
            given[name] = _of_file(name, value, known[name])
        except argparse.ArgumentTypeError as error:
            raise ConfigError(f"{place}: {name}: {error}") from error
    return given


def _repeated(node: Any, *, of_models: bool = False) -> str | None:
    """A key that a YAML mapping, or one in it, has twice. YAML would take the last one.

    In names of options `-` and `_` are the same; in names of models they are not.
    """
    if node is None or isinstance(node.value, str):
        return None
    pairs = [item if isinstance(item, tuple) else (None, item) for item in node.value]
    keys = ["" if key is None else str(key.value) for key, _ in pairs]
    names = [key if of_models else key.replace("-", "_") for key in keys]
    for name in filter(None, names):
        if names.count(name) > 1:
            return name
    within = (_repeated(value, of_models=key == "models") for key, (_, value) in zip(keys, pairs, strict=True))
    return next(filter(None, within), None)


def _of_file(name: str, value: Any, hint: Any) -> Any:
    """An option's value as a file has it: a size may have a unit, everything else is of the option's type.

    Raises:
        argparse.ArgumentTypeError: it is of another one. Names are not repeated: they may be keys.
    """
    kinds = kinds_of(hint)
    if isinstance(value, str) and name.endswith(SIZES):
        return size(value)
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
