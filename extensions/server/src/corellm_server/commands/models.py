"""The models that a command's options name: one, or several in the file that `--config` names.

Knows which options are a model's own and which the server's, and names that would be two models'.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from corellm.cli.arguments import ENGINE_CONFIGS
from corellm.errors import ConfigError
from corellm.fetch_settings import FetchSettings
from corellm_server.commands.arguments import config_of, given_options
from corellm_server.commands.config_file import checked_options
from corellm_server.limits import RequestLimits
from corellm_server.options import ServerConfig, ServerOptions

_OF_A_MODEL = (
    "served_model_name", "lora_modules", "enable_mm_embeds", "allow_request_templates", "allowed_template_kwargs",
    "allowed_mm_processor_kwargs", "max_window_size", "tool_call_parser", "reasoning_parser", "score_template",
    "max_queue",
)  # fmt: skip
"""Options of a server that each of its models may have; the others are the gate's."""
_OF_AN_ONLY_ONE = ("enable_sleep_mode", "allowed_weights_path", "allow_runtime_lora_updating")
"""Options with URLs that name no model."""
_ALONE = " is for a server of one model; leave it out, or serve the model by itself"


@dataclass(frozen=True)
class ModelConfig:
    """A model of a server."""

    config: ServerConfig
    """Configuration of the server, with the model's own options in it."""
    engine_args: dict[str, Any]
    max_queue: int | None = None
    """Most requests of the model at once, of several; those of the server are in `config`."""


def configured_models(args: argparse.Namespace, offered: Sequence[type] = ()) -> dict[str, ModelConfig]:
    """The models of a server by name, the first one first; of an only one the name is empty.

    Args:
        args: of the command line.
        offered: classes of further options, which extensions offer.

    Raises:
        ConfigError: an option is wrong, or is not a model's, or there is no model; or a name is that of two.
    """
    given, named = given_options(args, offered)
    if named is None:
        return {"": ModelConfig(*config_of(args, given, offered))}
    for name in ("model", "served_model_name"):
        if name in given:
            raise ConfigError(f"{name} does not go with `models` of --config {args.config}; name it there, in a model")
    for name in _OF_AN_ONLY_ONE:
        if given.get(name):
            raise ConfigError(f"{name}{_ALONE}")
    models = {}
    for name, own in _entries(args.config, named, offered):
        names = own.pop("served_model_name", ())
        further = (names,) if isinstance(names, str) else tuple(names)
        try:
            config, engine_args = config_of(args, {**given, **own, "served_model_name": (name, *further)}, offered)
        except ConfigError as error:
            raise ConfigError(f"models: {name}: {error}") from error
        places = None if "max_queue" in given and "max_queue" not in own else config.options.max_queue
        models[name] = ModelConfig(config, engine_args, places)
    _check_names(models)
    whole = given.get("max_queue", sum(model.max_queue or 0 for model in models.values()))
    models |= _with_places({name: model for name, model in models.items() if model.max_queue is None}, models, whole)
    return {
        name: replace(model, config=replace(model.config, options=replace(model.config.options, max_queue=whole)))
        for name, model in models.items()
    }


def _with_places(
    without: Mapping[str, ModelConfig], models: Mapping[str, ModelConfig], whole: int
) -> Iterator[tuple[str, ModelConfig]]:
    """The models that have no places of their own, with equal parts of those that the others leave.

    Raises:
        ConfigError: they leave too few.
    """
    left = whole - sum(model.max_queue or 0 for model in models.values())
    if without and left < len(without):
        told = ", ".join(without)
        raise ConfigError(
            f"max_queue={whole} leaves {left} for {told:.100}, which need 1 each; raise it, or give them theirs"
        )
    for number, (name, model) in enumerate(without.items()):
        yield name, replace(model, max_queue=(left + len(without) - 1 - number) // len(without))


def _entries(path: str, named: Any, offered: Sequence[type]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The models in a file, each with its own options."""
    if not isinstance(named, Mapping) or not named:
        raise ConfigError(f"--config {path}: models must have lines like `chat: {{model: demo}}`")
    of_gate = {field.name for room in (ServerOptions, RequestLimits, FetchSettings) for field in fields(room)}
    of_gate -= {*_OF_A_MODEL, *(field.name for room in ENGINE_CONFIGS for field in fields(room))}
    for name, own in named.items():
        place = f"--config {path}: models: {name!r:.100}"
        if not isinstance(name, str) or not name or not isinstance(own, Mapping):
            raise ConfigError(f"{place} must be a name with options, like `chat: {{model: demo}}`; got {own!r:.100}")
        for option in own:
            if str(option).replace("-", "_") in _OF_AN_ONLY_ONE:
                raise ConfigError(f"{place}: {option}{_ALONE}")
            if str(option).replace("-", "_") in of_gate:
                raise ConfigError(f"{place}: {option} is the whole server's; write it beside `models`")
        yield name, checked_options(place, own, (ServerOptions, *offered, *ENGINE_CONFIGS))


def _check_names(models: Mapping[str, ModelConfig]) -> None:
    owners: dict[str, str] = {}
    for owner, model in models.items():
        options = model.config.options
        names: Collection[str] = [*options.served_model_name, *(one.partition("=")[0] for one in options.lora_modules)]
        for name in names:
            if name in owners:
                raise ConfigError(
                    f"models: {name!r:.100} names two models or adapters, of {owners[name]!r:.100} and of "
                    f"{owner!r:.100}; choose another one"
                )
            owners[name] = owner
