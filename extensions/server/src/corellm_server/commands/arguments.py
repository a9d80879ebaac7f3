"""Arguments of the commands that take a server's requests: its options and the engine's, or a file with them.

Defines them and reads them; what is done with the configuration is the commands' own.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from corellm.cli.arguments import ENGINE_CONFIGS
from corellm.cli.fields import add_fields, given_fields
from corellm.errors import ConfigError
from corellm.fetch_settings import FetchSettings
from corellm_server.commands.config_file import checked_options, read_config
from corellm_server.limits import RequestLimits
from corellm_server.options import ServerConfig, ServerOptions

_CONFIGS = (ServerOptions, RequestLimits, FetchSettings, *ENGINE_CONFIGS)


def add_server(parser: argparse.ArgumentParser, title: str, *, skip: Collection[str] = ()) -> None:
    """Add all options but the model.

    Args:
        parser: of the command.
        title: what the server's own options are called.
        skip: fields that mean nothing to the command.
    """
    parser.add_argument("--config", metavar="FILE", help="YAML file with options; those of the command line go first")
    parser.add_argument("--traceback", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    add_fields(parser, title, ServerOptions, skip=skip)
    add_fields(parser, "limits of requests", RequestLimits, skip=skip)
    add_fields(parser, "fetching", FetchSettings)
    for config in ENGINE_CONFIGS:
        add_fields(parser, f"engine: {config.__name__}", config, skip=("model",))


def configured(args: argparse.Namespace, offered: Sequence[type] = ()) -> tuple[ServerConfig, dict[str, Any]]:
    """The server's configuration, and the engine's arguments.

    Args:
        args: of the command line.
        offered: classes of further options, which extensions offer.

    Raises:
        ConfigError: an option is wrong or lacks another, or there is no model.
    """
    given, models = given_options(args, offered)
    if models is not None:
        raise ConfigError(f"--config {args.config}: models are for corellm serve; {args.command} has one model")
    return config_of(args, given, offered)


def given_options(args: argparse.Namespace, offered: Sequence[type]) -> tuple[dict[str, Any], Any]:
    """The options of the command line and of a file, and what the file has as `models`; None for nothing.

    Raises:
        ConfigError: the file cannot be read, or an option in it is wrong.
    """
    configs = (*_CONFIGS, *offered)
    given: dict[str, Any] = read_config(args.config) if args.config else {}
    models = (given.pop("models") or {}) if "models" in given else None
    given = checked_options(f"--config {args.config}", given, configs)
    return given | given_fields(vars(args), configs), models


def config_of(
    args: argparse.Namespace, given: Mapping[str, Any], offered: Sequence[type]
) -> tuple[ServerConfig, dict[str, Any]]:
    """The configuration that options by name make, and the engine's arguments.

    Raises:
        ConfigError: an option is wrong or lacks another, or there is no model.
    """
    if "api_key" in given and not given["api_key"]:
        raise ConfigError("api_key is empty (an unset variable?); leave it out for a server that all may use")
    if "model" not in given:
        raise ConfigError(f"which model? {args.command} needs one, e.g. demo")
    config = ServerConfig(
        options=ServerOptions(**given_fields(given, [ServerOptions])),
        limits=RequestLimits(**given_fields(given, [RequestLimits])),
        fetching=FetchSettings(**given_fields(given, [FetchSettings])),
        offered=tuple(options(**given_fields(given, [options])) for options in offered),
    )
    for name in ("lora_modules", "allow_runtime_lora_updating"):
        if getattr(config.options, name) and not given.get("enable_lora"):
            raise ConfigError(f"{name} needs enable_lora: a model that is loaded without takes no adapters; set both")
    return config, given_fields(given, ENGINE_CONFIGS)
