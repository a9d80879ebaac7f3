"""The input of a batch: a file that has requests, or a directory of images. Knows which is which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from corellm.errors import ConfigError
from corellm_server.batch.image_folder import ImageFolder
from corellm_server.batch.input_file import InputFile
from corellm_server.batch.inputs import InputOptions
from corellm_server.options import ServerConfig
from corellm_server.service import served_names


def open_input(
    path: str, options: InputOptions, config: ServerConfig, engine_args: Mapping[str, Any]
) -> InputFile | ImageFolder:
    """Open the input.

    Args:
        path: of a file or a directory.
        options: of what has no requests of its own.
        config, engine_args: of the command.

    Raises:
        ConfigError: it cannot be read, or options mean nothing to it.
    """
    if Path(path).is_dir():
        plain = InputOptions()
        if options.image_column != plain.image_column:
            raise ConfigError(f"image_column is for tables: those in the directory {path} name images in file_name")
        if options.question is not None and options.question_column != plain.question_column:
            raise ConfigError("question is for all images, and question_column has one for each; leave one out")
        model = served_names(config.options, engine_args["model"])[0]
        asked = options.question, options.question_column, options.fields
        return ImageFolder(path, model, *asked, config.limits.max_body_bytes)
    given = [field.name for field in fields(options) if getattr(options, field.name) != field.default]
    if given and Path(path).exists():
        raise ConfigError(
            f"the input {path} is a file of requests, which have questions and fields of their own: leave out "
            f"{', '.join(given)}"
        )
    return InputFile(path, config.limits.max_body_bytes)
