"""Loads a draft model beside the model that it drafts for.

Knows the parts of a load, which are the core's, and why a model cannot draft for another.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from corellm.attention.registry import select_backend
from corellm.config import EngineConfig
from corellm.errors import ConfigError
from corellm.hookspecs import ModelContext
from corellm.loading.checkpoint import default_max_model_len
from corellm.loading.model_parts import ModelParts, load_weights
from corellm.loading.opening import at_load, open_model
from corellm.loading.rope import freeze_rope
from corellm.loading.sizing import sequences_at_once, token_budget, wanted_len
from corellm.loading.weight_key import weight_source
from corellm.worker.kv_cache import cache_dtype
from corellm_speculative.draft_checkpoint import draft_config, locate_draft
from corellm_speculative.draft_model import DraftModel
from corellm_speculative.settings import DraftSettings
from corellm_speculative.vocabulary import check_vocabulary

if TYPE_CHECKING:
    from corellm_recurrent.states import RecurrentStates

logger = logging.getLogger(__name__)


def load_draft(config: EngineConfig, context: ModelContext, settings: DraftSettings) -> DraftModel:
    """Load the draft model.

    Args:
        config, context: of the engine, and of the model that is drafted for.
        settings: of drafts.

    Raises:
        CheckpointError, PluginError, ConfigError: why it cannot draft for this model.
    """
    assert settings.model is not None
    own = replace(config, model=draft_config(config.model, settings))
    with at_load(settings.model):
        opened = open_model(own, locate_draft(config.model, settings))
        opened.templates.close()
        check_vocabulary(context.tokenizer, opened.context.tokenizer, settings.model)
        longest = wanted_len(config, context)
        max_len = min(longest, default_max_model_len(opened.context.hf_config))
        own = replace(own, model=replace(own.model, max_model_len=max_len))
        backend = select_backend(opened.context.device, opened.context.dtype, config.model.attention_backend)
        kv_dtype = cache_dtype(config.cache.kv_cache_dtype, opened.context.dtype)
        weights = load_weights(own, opened, backend, weight_source(own, opened))
        if weights.attended is not None:
            raise ConfigError(
                f"speculative_config: the draft model {settings.model} attends to states of items; take one that does "
                "not"
            )
        freeze_rope(weights.language_model, max_len)
        states = _states(weights, opened.context, sequences_at_once(config, context), settings.num_speculative_tokens)
    logger.info("%s drafts up to %d tokens in a step", settings.model, settings.num_speculative_tokens)
    return DraftModel(
        opened.context,
        opened.hooks,
        weights,
        backend,
        kv_dtype,
        block_size=config.cache.block_size,
        max_len=max_len,
        max_num_seqs=sequences_at_once(config, context),
        num_tokens=token_budget(config, context, longest),
        captures=not config.model.enforce_eager,
        states=states,
    )


def _states(weights: ModelParts, context: ModelContext, max_num_seqs: int, most_drafts: int) -> RecurrentStates | None:
    """Return the states of layers that keep some, with memory for them; None for a model without such layers."""
    if weights.kept is None:
        return None
    from corellm_recurrent.kept import KeptStates  # a model with states has been opened by this distribution
    from corellm_speculative.draft_states import DraftRows

    assert isinstance(weights.kept, KeptStates)
    rows = DraftRows(max_num_seqs, most_drafts + 1)
    return weights.kept.on_rows(weights.language_model, rows, context.dtype, context.device)
