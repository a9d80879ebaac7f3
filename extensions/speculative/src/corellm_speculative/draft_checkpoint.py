"""Where a draft model is, and how it is configured. Imports neither torch nor transformers."""

from __future__ import annotations

from corellm.config import ModelConfig
from corellm.errors import CheckpointError, ConfigError
from corellm.loading.locating import LocatedModel, locate
from corellm_speculative.settings import DraftSettings


def locate_draft(config: ModelConfig, settings: DraftSettings) -> LocatedModel:
    """Return the draft model's checkpoint.

    Raises:
        CheckpointError, PluginError, ConfigError: what is wrong with it.
    """
    try:
        located = locate(draft_config(config, settings))
    except CheckpointError as error:
        raise CheckpointError(f"speculative_config: the draft model: {error}") from error
    if "generate" not in located.use.tasks:
        raise ConfigError(
            f"speculative_config: the draft model {settings.model} generates no text; take one that does, with the "
            "model's tokenizer"
        )
    return located


def draft_config(config: ModelConfig, settings: DraftSettings) -> ModelConfig:
    """Return the configuration of the draft model: in everything that its settings do not say as the model's."""
    assert settings.model is not None
    return ModelConfig(
        model=settings.model,
        revision=settings.revision,
        quantization=settings.quantization,
        load_format=config.load_format,
        dtype=config.dtype,
        device=config.device,
        trust_remote_code=config.trust_remote_code,
        attention_backend=config.attention_backend,
        fuse_layers=config.fuse_layers,
        weight_cache=config.weight_cache,
        weight_cache_bytes=config.weight_cache_bytes,
        generation_config="none",
    )
