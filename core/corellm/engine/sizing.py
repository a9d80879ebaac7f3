"""How much of everything one engine gets: KV blocks, sequence length, tokens per step.

Knows the operator's wishes, the model's length and the memory there is; allocates nothing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from corellm.config import EngineConfig
from corellm.errors import ConfigError
from corellm.worker import checkpoint as checkpoints
from corellm.worker.kv_cache import choose_num_blocks
from corellm.worker.memory import DeviceMemory

logger = logging.getLogger(__name__)

DEFAULT_TOKEN_BUDGET = 2048


@dataclass(frozen=True)
class Sizes:
    """How much of everything: blocks on the device and on the host, tokens per sequence and per step."""

    num_blocks: int
    num_host_blocks: int
    max_model_len: int
    token_budget: int


def wanted_len(config: EngineConfig, hf_config: Any) -> int:
    """The longest sequence if memory does not limit it: what was asked for, else what the model was trained for.

    Raises:
        ConfigError: the model has not so many positions.
    """
    trained, wanted = checkpoints.default_max_model_len(hf_config), config.model.max_model_len
    if wanted is not None and wanted > trained:
        raise ConfigError(f"max_model_len={wanted} exceeds the {trained} positions the model has; lower it")
    return wanted or trained


def plan_sizes(config: EngineConfig, hf_config: Any, bytes_per_block: int, memory: DeviceMemory) -> Sizes:
    """Divide the memory: as many blocks as fit and could be used, and what follows from their number.

    Raises:
        ConfigError: what was asked for does not fit; says what to change.
    """
    block_size = config.cache.block_size
    num_blocks = choose_num_blocks(
        config.cache, bytes_per_block, config.scheduler.max_num_seqs * wanted_len(config, hf_config), memory
    )
    max_model_len = _max_model_len(config, hf_config, (num_blocks - 1) * block_size)
    budget = token_budget(config, max_model_len)
    logger.info(
        "%s: %d KV blocks of %d tokens (%.2f GiB): %.1f sequences of %d tokens at once; %d tokens per step",
        config.model.model, num_blocks - 1, block_size, num_blocks * bytes_per_block / 2**30,
        (num_blocks - 1) * block_size / max_model_len, max_model_len, budget,
    )  # fmt: skip
    return Sizes(num_blocks, _swap_blocks(config, bytes_per_block, num_blocks), max_model_len, budget)


def _max_model_len(config: EngineConfig, hf_config: Any, capacity: int) -> int:
    """The longest sequence: what was asked for, if the cache can hold it, else what it can."""
    wanted = wanted_len(config, hf_config)
    if wanted <= capacity:
        return wanted
    if config.model.max_model_len is not None:
        raise ConfigError(
            f"max_model_len={wanted} exceeds the {capacity} tokens the KV cache holds; lower it, or raise "
            f"num_kv_blocks or kv_cache_memory"
        )
    logger.warning("max_model_len lowered from %d to %d, what the KV cache holds", wanted, capacity)
    return capacity


def token_budget(config: EngineConfig, max_model_len: int) -> int:
    """Tokens per step.

    Raises:
        ConfigError: without chunked prefill, and less than the longest prompt.
    """
    budget = config.scheduler.max_num_batched_tokens
    if config.scheduler.enable_chunked_prefill:
        return budget or DEFAULT_TOKEN_BUDGET
    if budget is not None and budget < max_model_len:
        raise ConfigError(
            f"max_num_batched_tokens={budget} is less than max_model_len={max_model_len}: without chunked prefill a "
            f"whole prompt must fit one step; raise it, lower max_model_len, or leave enable_chunked_prefill on"
        )
    return budget or max(DEFAULT_TOKEN_BUDGET, max_model_len)


def _swap_blocks(config: EngineConfig, bytes_per_block: int, num_blocks: int) -> int:
    """Host blocks for swapping: what the space holds, and no more than could ever be used."""
    if config.scheduler.preemption_mode != "swap":
        return 0
    return min(int(config.cache.swap_space * 2**30) // bytes_per_block, config.scheduler.max_num_seqs * num_blocks)
