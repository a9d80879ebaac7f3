"""`EngineArgs`: every argument of `LLM(...)`, corellm's and those that scripts written for vLLM give beside them.

Knows the engine's configuration classes and the tables of other arguments; loads no model.
"""

from __future__ import annotations

import argparse
import ast
import copy
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, field, fields, make_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from corellm.cli.fields import add_fields
from corellm.config import CacheConfig, ModelConfig, MultiModalConfig, SchedulerConfig, suggestion
from corellm.errors import ConfigError
from corellm.fetch_settings import FetchSettings
from corellm_vllm.absent.engine import ENGINE_ARGUMENTS, RENAMED, TASKS
from corellm_vllm.absent.exports import exports
from corellm_vllm.absent.names import METHODS
from corellm_vllm.absent.table import absent_attribute, check_absent

_CONFIGS = (ModelConfig, CacheConfig, SchedulerConfig, MultiModalConfig, FetchSettings)
_SHORT = {"tensor_parallel_size": "-tp", "pipeline_parallel_size": "-pp", "data_parallel_size": "-dp"}


def engine_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return corellm's arguments for those of a script.

    Raises:
        ConfigError: an unknown argument, with the nearest known one; something that corellm lacks; two names of the
            same argument.
    """
    for name in given:
        if name not in _DEFAULTS:
            raise ConfigError(f"LLM has no argument {name!r}{suggestion(name, _DEFAULTS)}")
    kept = check_absent("LLM", given, ENGINE_ARGUMENTS, ConfigError)
    for old, new in RENAMED.items():
        if (value := kept.pop(old, None)) is not None:
            if kept.get(new) not in (None, _DEFAULTS[new]):
                raise ConfigError(f"{old} and {new} are the same; give one of them")
            kept[new] = value
    task = _of_task(kept.pop("task", None))
    return kept | task


def _of_task(task: Any) -> dict[str, str]:
    if not isinstance(task, str | None) or task not in TASKS:
        known = ", ".join(str(name) for name in TASKS if name is not None)
        raise ConfigError(f"task must be one of {known}; got {task!r:.100}")
    return TASKS[task]


class _Arguments:
    """The methods of `EngineArgs`."""

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add an option for every argument."""
        parser.add_argument("--model", help="a directory, a hub name, or a checkpoint that a plugin ships")
        for config in _CONFIGS:
            add_fields(parser, config.__name__, config, skip=("model", *_LISTS))
        group = parser.add_argument_group("arguments of vLLM", "taken where they ask for nothing")
        for name in _OTHERS:
            flags = [f"--{name.replace('_', '-')}", *([_SHORT[name]] if name in _SHORT else [])]
            reading: dict[str, Any] = {"type": _value}
            if isinstance(_DEFAULTS[name], bool):
                reading = {"action": argparse.BooleanOptionalAction}
            group.add_argument(*flags, dest=name, help=argparse.SUPPRESS, **reading)
        parser.set_defaults(**copy.deepcopy(_DEFAULTS))
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """Return the arguments that a command line gives."""
        return cls(**{name: getattr(args, name) for name in _DEFAULTS if hasattr(args, name)})

    def engine_arguments(self) -> dict[str, Any]:
        """Return corellm's arguments; errors as of the function."""
        return engine_arguments(asdict(self))  # type: ignore[call-overload]  # subclasses are dataclasses

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Refuse unknown arguments.

        Raises:
            ConfigError: with the nearest known one.
        """
        for name in given:
            if name not in _DEFAULTS:
                raise ConfigError(f"{cls.__name__} has no argument {name!r}{suggestion(name, _DEFAULTS)}")
        return object.__new__(cls)

    if not TYPE_CHECKING:  # or type checkers would accept every name

        def __getattr__(self, name: str) -> Any:
            raise absent_attribute(self, name, METHODS)


def _default(of: Field[Any]) -> Any:
    if of.name == "model":
        return None  # which is refused when a model is loaded: a script's default would be downloaded
    return of.default if of.default_factory is MISSING else of.default_factory()


def _value(text: str) -> Any:
    """Read an option's value: Python's literals, or text."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


_OWN = [of for config in _CONFIGS for of in fields(config)]
_LISTS = ("media_formats", "allowed_media_domains")
"""Lists, whose options would add to the default."""
_OTHERS: dict[str, Any] = {
    name: next((value for value in entry.neutral if value is not None), None)
    for name, entry in ENGINE_ARGUMENTS.items()
} | dict.fromkeys(["task", *RENAMED])
_DEFAULTS: dict[str, Any] = {of.name: _default(of) for of in _OWN} | _OTHERS


def _fields() -> list[tuple[str, Any, Any]]:
    return [(name, Any, field(default_factory=partial(copy.copy, value))) for name, value in _DEFAULTS.items()]


if TYPE_CHECKING:

    class EngineArgs(_Arguments):
        """What type checkers see."""

        def __init__(self, model: str | None = None, **engine_args: Any) -> None: ...

    class AsyncEngineArgs(EngineArgs):
        """What type checkers see."""

else:
    EngineArgs = make_dataclass("EngineArgs", _fields(), bases=(_Arguments,), namespace={"__module__": __name__})
    EngineArgs.__doc__ = "Arguments of `LLM(...)`, to change before a model is loaded, or to read from a command line."
    AsyncEngineArgs = make_dataclass("AsyncEngineArgs", [], bases=(EngineArgs,), namespace={"__module__": __name__})
    AsyncEngineArgs.__doc__ = "The same for `AsyncLLM(...)`."

__all__ = ["AsyncEngineArgs", "EngineArgs", "engine_arguments"]
__getattr__ = exports(__name__)
