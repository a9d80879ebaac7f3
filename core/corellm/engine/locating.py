"""Finds a checkpoint and the plugin that serves it, before torch and transformers are imported.

Reports at once what needs neither: no such model, broken files, no plugin.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from corellm.config import ModelConfig
from corellm.engine.recommended_sampling import recommended_sampling
from corellm.errors import ConfigError, PluginNotFoundError
from corellm.plugin.adapters import AdapterEntry, find_adapter
from corellm.pooling.sentence_transformers import read_stated_pooling
from corellm.pooling.settings import Use, generative_names, resolve_use
from corellm.pooling_params import PoolerConfig
from corellm.sampling_params import SamplingParams
from corellm.worker.checkpoint import read_architectures, resolve_checkpoint, resolve_tokenizer
from corellm.worker.checkpoint_files import check_files, read_json


@dataclass(frozen=True)
class LocatedModel:
    """A checkpoint on disk whose files were checked, and the plugin that serves it."""

    path: Path
    tokenizer_path: Path
    """Directory of the tokenizer's files: the checkpoint's, unless `tokenizer` names another."""
    entry: AdapterEntry
    architectures: tuple[str, ...]
    """Names under which the plugin serves it: those it states, or of the family's models that generate text."""
    use: Use
    sampling: SamplingParams
    """Default sampling parameters of requests."""


def locate(config: ModelConfig) -> LocatedModel:
    """Return the checkpoint, its files checked, and its plugin.

    Raises:
        CheckpointError, PluginError, ConfigError: what is wrong, and the way out.
    """
    path = resolve_checkpoint(config)
    architectures = _architectures(config, path)
    PoolerConfig.of(config.pooler_config)  # refused before weights are read
    stated = read_stated_pooling(path) is not None
    use = resolve_use(config.runner, config.convert, (*architectures, "")[0], states_pooling=stated)
    entry, architectures = _adapter_for(config, path, architectures)
    check_files(path, weights=config.load_format != "dummy")
    tokenizer_path = resolve_tokenizer(config, path)
    if tokenizer_path != path:
        check_files(tokenizer_path, weights=False)
    sampling = recommended_sampling(path) if config.generation_config == "auto" else SamplingParams()
    return LocatedModel(path, tokenizer_path, entry, architectures, use, sampling)


def _adapter_for(
    config: ModelConfig, path: Path, architectures: tuple[str, ...]
) -> tuple[AdapterEntry, tuple[str, ...]]:
    """Return the adapter, and the architectures it was found by: a pooling model's own, or its family's others."""
    try:
        return find_adapter(architectures, adapter=config.adapter), architectures
    except PluginNotFoundError as error:
        others = tuple(name for stated in architectures for name in generative_names(stated))
        with contextlib.suppress(PluginNotFoundError):  # the error about the stated ones is raised
            return find_adapter(others, adapter=config.adapter), others
        if not read_json(path / "config.json").get("is_encoder_decoder"):
            raise
        raise PluginNotFoundError(f"{error}. It is an encoder-decoder; corellm itself runs decoders only") from error


def _architectures(config: ModelConfig, path: Path) -> tuple[str, ...]:
    """Return the architectures of `hf_overrides`, else those of the checkpoint."""
    overrides = config.hf_overrides
    stated = overrides.get("architectures") if isinstance(overrides, Mapping) else None
    if stated is None:
        return read_architectures(path)
    if not isinstance(stated, (list, tuple)) or not all(isinstance(name, str) for name in stated):
        raise ConfigError(f"hf_overrides: architectures must be a list of names, got {stated!r:.100}")
    return tuple(stated)
