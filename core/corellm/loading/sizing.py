"""Sizes of one engine: KV blocks, sequence length, tokens per step.

Knows the configuration, the model's length and the free memory; allocates nothing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from corellm.config import EngineConfig
from corellm.errors import ConfigError
from corellm.hookspecs import ModelContext
from corellm.loading import checkpoint as checkpoints
from corellm.loading.rope import longest_len
from corellm.system.memory import DeviceMemory
from corellm.worker.kv_cache import CacheBytes, choose_num_blocks

logger = logging.getLogger(__name__)

_SEQUENCES = {"cpu": 64, "cuda": 256}
_TOKENS = {"cpu": 2048, "cuda": 8192}
"""Default limits of a step by type of device: with less a GPU is not busy."""
_DRAFTED_ROWS = 256


@dataclass(frozen=True)
class Sizes:
    """Numbers of device and host blocks, tokens per sequence, running sequences, tokens per step."""

    num_blocks: int
    num_host_blocks: int
    max_model_len: int
    max_num_seqs: int
    token_budget: int
    num_places: int | None = None
    """Blocks that layers with a window have, where they have fewer."""
    kept_embeds: int = 0
    """Embeddings of encoder outputs to keep, where that is more than those of a step."""


def wanted_len(config: EngineConfig, context: ModelContext) -> int:
    """Return the longest sequence before memory limits it: the configured one, else the trained one.

    Raises:
        ConfigError: the model has fewer positions.
    """
    trained, wanted = checkpoints.default_max_model_len(context.hf_config), config.model.max_model_len
    longest = longest_len(context.hf_config.get_text_config(), trained)
    if wanted is not None and wanted > longest:
        raise ConfigError(f"max_model_len={wanted} exceeds the {longest} positions the model has; lower it")
    return wanted or trained


def sequences_at_once(config: EngineConfig, context: ModelContext) -> int:
    """Return the most sequences that run in a step."""
    return config.scheduler.max_num_seqs or _SEQUENCES[context.device.type]


def most_captured_rows(config: EngineConfig, context: ModelContext) -> int:
    """Return the most rows of a captured step: one for each sequence, and some for drafts, if there are to be any.

    More rows take the time of their arithmetic, which a graph does not lower.
    """
    num_seqs = sequences_at_once(config, context)
    return num_seqs if config.model.speculative_config is None else max(num_seqs, _DRAFTED_ROWS)


def plan_sizes(
    config: EngineConfig, context: ModelContext, cache: CacheBytes, memory: DeviceMemory, beside: int = 0
) -> Sizes:
    """Return the sizes: as many blocks as fit and can be used, and what follows from their number.

    A sequence that attends to states has blocks for up to `beside` of them besides.

    Raises:
        ConfigError: the configured sizes do not fit; says what to change.
    """
    block_size, num_seqs = config.cache.block_size, sequences_at_once(config, context)
    slots = wanted_len(config, context) + beside + (block_size if beside else 0)
    num_blocks = choose_num_blocks(config.cache, cache, num_seqs * slots, memory)
    num_places = cache.most_places if 0 < cache.most_places < num_blocks else None
    max_model_len = _max_model_len(config, context, (num_blocks - 1) * block_size)
    budget = token_budget(config, context, max_model_len)
    logger.info(
        "%s: %d KV blocks of %d tokens (%.2f GiB): %.1f sequences of %d tokens at once; %d tokens per step",
        config.model.model, num_blocks - 1, block_size, cache.of(num_blocks) / 2**30,
        (num_blocks - 1) * block_size / max_model_len, max_model_len, budget,
    )  # fmt: skip
    if num_places is not None:
        logger.info("layers with a window have %d of these blocks", num_places - 1)
    num_host_blocks = 0
    if config.scheduler.preemption_mode == "swap":  # as many as fit, at most as many as can be used
        num_host_blocks = min(
            int(config.cache.swap_space * 2**30) // (cache.block + cache.place), num_seqs * num_blocks
        )
    # Where a prompt's prefix is found, its last item is most often needed once more: the block in which it ends has
    # tokens of the question. Beside its KV an embedding is small; on a GPU the profile run does not count it.
    kept_embeds = (num_blocks - 1) * block_size if context.device.type == "cpu" else 0
    return Sizes(num_blocks, num_host_blocks, max_model_len, num_seqs, budget, num_places, kept_embeds)


def _max_model_len(config: EngineConfig, context: ModelContext, capacity: int) -> int:
    """Return the longest sequence: the wanted one if the cache holds it, else what the cache holds."""
    wanted = wanted_len(config, context)
    if wanted <= capacity:
        return wanted
    if config.model.max_model_len is not None:
        raise ConfigError(
            f"max_model_len={wanted} exceeds the {capacity} tokens the KV cache holds; lower it, or raise "
            f"num_kv_blocks or kv_cache_memory"
        )
    logger.warning("max_model_len lowered from %d to %d, what the KV cache holds", wanted, capacity)
    return capacity


def token_budget(config: EngineConfig, context: ModelContext, max_model_len: int) -> int:
    """Return the tokens per step.

    Raises:
        ConfigError: without chunked prefill, it is less than the longest prompt.
    """
    budget = config.scheduler.max_num_batched_tokens
    default = _TOKENS[context.device.type]
    if config.scheduler.enable_chunked_prefill:
        return budget or default
    if budget is not None and budget < max_model_len:
        raise ConfigError(
            f"max_num_batched_tokens={budget} is less than max_model_len={max_model_len}: without chunked prefill a "
            f"whole prompt must fit one step; raise it, lower max_model_len, or leave enable_chunked_prefill on"
        )
    return budget or max(default, max_model_len)
