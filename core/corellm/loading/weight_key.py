"""The key of what is made of a model's weights: everything that it depends on, but for the kernels that make it.

Files of weights are told apart by size, times and place, as version control does: to read all of them takes as long as
packing. Knows where it may be kept; knows nothing of what is kept, which is the kernels' matter.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import safetensors
import torch
import transformers
from torch import nn

import corellm
from corellm.config import EngineConfig
from corellm.errors import ConfigError
from corellm.loading.opening import OpenedModel
from corellm.plugin.extensions import installed_extensions
from corellm.system.cache_folder import against_mapping, cache_folder

logger = logging.getLogger(__name__)

_SETTINGS = ("adapter", "quantization", "runner", "convert", "hf_overrides", "pooler_config")
"""Arguments that decide which layers a model has, and of which numbers."""
_WORTH_IT = 64 << 20
"""Bytes of weights from which on what is made of them is kept unasked: packing fewer takes a tenth of a second."""
_SHARE, _SHARE_UNASKED = 0.95, 0.5
"""Shares of the free disk that kept weights may take: in a folder that the user names, and in the user's cache."""


@dataclass(frozen=True)
class WeightKey:
    """Where what is made of a model's weights may be kept for later starts, and under which key."""

    folder: Path
    """Folder of the files, which may not exist yet."""
    key: str
    """All that the weights depend on."""
    limit: int
    """Bytes that files in the folder may take together."""
    share: float
    """Share that they may take of what would be free on their disk without them."""


@dataclass(frozen=True)
class WeightSource:
    """A model's files and settings before its weights are read, and the folder that the user names for packed ones."""

    folder: Path | None
    """The folder that the user names; None for the user's cache, which takes large models only."""
    limit: int
    """Bytes that files there may take together."""
    state: Sequence[object]
    """Sizes, times and places of the files, and the settings: whatever decides about the packed weights."""

    def key_of(self, model: nn.Module) -> WeightKey | None:
        """Return the key under which packed weights of a model are kept; None where they are not kept."""
        folder, share = self.folder, _SHARE
        if folder is None:
            folder, share = _folder_unasked(model), _SHARE_UNASKED
        if folder is None:
            return None
        extensions = [(entry.distribution, entry.version) for entry in installed_extensions()]
        return WeightKey(folder, json.dumps([*self.state, extensions]), self.limit, share)


def weight_source(config: EngineConfig, opened: OpenedModel) -> WeightSource | None:
    """Return the source of a model's weights; None where packed weights are not to be kept, or have no key.

    Raises:
        ConfigError: the folder that the user names is a file.
    """
    model, context = config.model, opened.context
    if model.weight_cache in (None, "none"):
        return None
    folder = None if model.weight_cache == "auto" else Path(model.weight_cache).expanduser()
    if folder is not None and os.path.isfile(folder):  # where nothing may be looked up, the log says so later
        raise ConfigError(f"weight_cache must be a folder, got the file '{folder}'; one that is not there is made")
    if (
        model.load_format == "dummy"
        or callable(model.hf_overrides)
        or (folder is None and context.device.type != "cpu")
    ):
        return None
    files = sorted(path for path in context.model_path.iterdir() if path.is_file())  # links may lead nowhere
    state = [
        [module.__version__ for module in (corellm, torch, transformers, safetensors)],
        opened.namespace,
        str(context.dtype),
        [repr(getattr(model, name)) for name in _SETTINGS],
        [_told_apart(path) for path in files if path.suffix == ".safetensors"],
        [hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.suffix in (".json", ".py")],
    ]
    return WeightSource(folder, model.weight_cache_bytes, state)


def _told_apart(path: Path) -> list[object]:
    file, stat = path.resolve(), path.stat()
    return [path.name, str(file), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev]


def _folder_unasked(model: nn.Module) -> Path | None:
    """Return the folder in the user's cache; None where the model is small, or files should not be there."""
    if sum(tensor.nbytes for tensor in chain(model.parameters(), model.buffers())) < _WORTH_IT:
        return None
    try:
        folder = cache_folder("weights")
        reason = against_mapping(folder)
    except (ConfigError, OSError) as error:
        logger.warning("packed weights are not kept: %s; weight_cache can name another folder, or none", error)
        return None
    if reason is not None:
        logger.warning(
            "packed weights are not kept in %s: %s; weight_cache can name another folder, or none", folder, reason
        )
        return None
    return folder
