"""Finds a checkpoint and the plugin that serves it, before torch and transformers are imported.

Reports at once what needs neither: no such model, broken files, no plugin.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from corellm.config import ModelConfig
from corellm.errors import ConfigError, MissingExtraError, PluginConflictError, PluginNotFoundError, install_hint
from corellm.loading.checkpoint import read_architectures, resolve_checkpoint, resolve_tokenizer
from corellm.loading.model_use import ModelUse
from corellm.loading.recommended_sampling import recommended_sampling
from corellm.modelling.checkpoint_files import check_files, read_json
from corellm.plugin.adapters import AdapterEntry, find_adapter
from corellm.plugin.extensions import call_extensions
from corellm.sampling_params import SamplingParams


@dataclass(frozen=True)
class LocatedModel:
    """A checkpoint on disk whose files were checked, and the plugin that serves it."""

    path: Path
    tokenizer_path: Path
    """Directory of the tokenizer's files: the checkpoint's, unless `tokenizer` names another."""
    entry: AdapterEntry
    architectures: tuple[str, ...]
    """Names under which the plugin serves it: those it states, or further ones of its use."""
    use: ModelUse
    """What the model is run for."""
    sampling: SamplingParams
    """Default sampling parameters of requests."""


def locate(config: ModelConfig) -> LocatedModel:
    """Return the checkpoint, its files checked, and its plugin.

    Raises:
        CheckpointError, PluginError, ConfigError: what is wrong, and the way out.
    """
    path = resolve_checkpoint(config)
    architectures = _architectures(config, path)
    use = _use(config, path, architectures)
    entry, architectures = _adapter_for(config, path, architectures, use)
    check_files(path, weights=config.load_format != "dummy")
    tokenizer_path = resolve_tokenizer(config, path)
    if tokenizer_path != path:
        check_files(tokenizer_path, weights=False)
    sampling = recommended_sampling(path) if config.generation_config == "auto" else SamplingParams()
    return LocatedModel(path, tokenizer_path, entry, architectures, use, sampling)


def _use(config: ModelConfig, path: Path, architectures: tuple[str, ...]) -> ModelUse:
    """Return what the checkpoint is run for.

    Raises:
        ConfigError: an extension refuses the settings.
        PluginConflictError: several extensions offer one.
        MissingExtraError: they ask for what no installed extension offers.
    """
    offers = list(call_extensions("offer_use", _is_use, config=config, path=path, architectures=architectures))
    if len(offers) > 1:
        raise PluginConflictError(
            f"{path}: {' and '.join(name for name, _ in offers)} offer a use of this checkpoint; uninstall all but one"
        )
    if offers:
        use: ModelUse = offers[0][1]
        return use
    generating = {"runner": ("auto", "generate"), "convert": ("auto", "none"), "pooler_config": (None, {})}
    for name, values in generating.items():
        if (value := getattr(config, name)) not in values:
            raise MissingExtraError(f"{name}={value!r:.100} needs {install_hint('pooling')}")
    return ModelUse()


def _adapter_for(
    config: ModelConfig, path: Path, architectures: tuple[str, ...], use: ModelUse
) -> tuple[AdapterEntry, tuple[str, ...]]:
    """Return the adapter, and the architectures it was found by: the checkpoint's, or further ones of its use."""
    try:
        return find_adapter(architectures, adapter=config.adapter), architectures
    except PluginNotFoundError as error:
        others = tuple(name for stated in architectures for name in use.further_names(stated))
        with contextlib.suppress(PluginNotFoundError):  # the error about the stated ones is raised
            return find_adapter(others, adapter=config.adapter), others
        if not read_json(path / "config.json").get("is_encoder_decoder"):
            raise
        raise PluginNotFoundError(f"{error}. It is an encoder-decoder; corellm itself runs decoders only") from error


def _is_use(result: object) -> bool:
    return isinstance(result, ModelUse)


def _architectures(config: ModelConfig, path: Path) -> tuple[str, ...]:
    """Return the architectures of `hf_overrides`, else those of the checkpoint."""
    overrides = config.hf_overrides
    stated = overrides.get("architectures") if isinstance(overrides, Mapping) else None
    if stated is None:
        return read_architectures(path)
    if not isinstance(stated, (list, tuple)) or not all(isinstance(name, str) for name in stated):
        raise ConfigError(f"hf_overrides: architectures must be a list of names, got {stated!r:.100}")
    return tuple(stated)
