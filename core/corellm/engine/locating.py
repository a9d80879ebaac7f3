"""Finds a checkpoint and the plugin that serves it, before torch and transformers are imported.

Reports at once what needs neither: no such model, broken files, no plugin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from corellm.config import ModelConfig
from corellm.engine.recommended_sampling import recommended_sampling
from corellm.errors import ConfigError, PluginNotFoundError
from corellm.plugin.adapters import AdapterEntry, find_adapter
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
    sampling: SamplingParams
    """Default sampling parameters of requests."""


def locate(config: ModelConfig) -> LocatedModel:
    """Return the checkpoint, its files checked, and its plugin.

    Raises:
        CheckpointError, PluginError, ConfigError: what is wrong, and the way out.
    """
    path = resolve_checkpoint(config)
    entry = _adapter_for(config, path)
    check_files(path, weights=config.load_format != "dummy")
    tokenizer_path = resolve_tokenizer(config, path)
    if tokenizer_path != path:
        check_files(tokenizer_path, weights=False)
    sampling = recommended_sampling(path) if config.generation_config == "auto" else SamplingParams()
    return LocatedModel(path, tokenizer_path, entry, sampling)


def _adapter_for(config: ModelConfig, path: Path) -> AdapterEntry:
    """Return the entry point of the adapter that serves a checkpoint."""
    try:
        return find_adapter(_architectures(config, path), adapter=config.adapter)
    except PluginNotFoundError as error:
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
