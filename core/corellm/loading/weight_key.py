"""The key of what is made of a model's weights: everything that it depends on, but for the kernels that make it.

Files of weights are told apart by size, times and place, as version control does: to read all of them takes as long as
packing. Knows nothing of what is kept, which is the kernels' matter.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch
import transformers

import corellm
from corellm.config import EngineConfig
from corellm.errors import ConfigError
from corellm.loading.opening import OpenedModel
from corellm.plugin.extensions import installed_extensions

_SETTINGS = ("adapter", "quantization", "runner", "convert", "hf_overrides", "pooler_config")
"""Arguments that decide which layers a model has, and of which numbers."""


@dataclass(frozen=True)
class WeightKey:
    """Where what is made of a model's weights may be kept for later starts, and under which key."""

    folder: Path
    """Folder of the files, which may not exist yet."""
    key: str
    """All that the weights depend on."""
    limit: int
    """Bytes that files in the folder may take together."""


def weight_key(config: EngineConfig, opened: OpenedModel) -> WeightKey | None:
    """Return where what is made of the weights is kept; None where the user wants that nowhere, or they cannot be told
    apart.

    Raises:
        ConfigError: the folder is something else.
    """
    model, context = config.model, opened.context
    if model.weight_cache is None:
        return None
    folder = Path(model.weight_cache).expanduser()
    if os.path.isfile(folder):  # where nothing may be looked up, the log says so later
        raise ConfigError(f"weight_cache must be a folder, got the file '{folder}'; one that is not there is made")
    if model.load_format == "dummy" or callable(model.hf_overrides):
        return None
    files = sorted(path for path in context.model_path.iterdir() if path.is_file())  # links may lead nowhere
    key = [
        [module.__version__ for module in (corellm, torch, transformers, safetensors)],
        opened.namespace,
        [(entry.distribution, entry.version) for entry in installed_extensions()],
        str(context.dtype),
        [repr(getattr(model, name)) for name in _SETTINGS],
        [_told_apart(path) for path in files if path.suffix == ".safetensors"],
        [hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.suffix in (".json", ".py")],
    ]
    return WeightKey(folder, json.dumps(key), model.weight_cache_bytes)


def _told_apart(path: Path) -> list[object]:
    file, stat = path.resolve(), path.stat()
    return [path.name, str(file), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev]
