"""Which features a loaded model has: what runs beside its decoder in a step, and what holds blocks beside the tables.

Chooses and sizes them; each knows itself what it does. Imports a feature's code only for a model that has it.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from corellm.config import EngineConfig
from corellm.hookspecs import ModelContext
from corellm.loading.model_parts import ModelParts
from corellm.loading.sizing import Sizes, sequences_at_once, token_budget, wanted_len
from corellm.multimodal.profile import DummyProfile
from corellm.scheduling.block_pool import BlockPool
from corellm.scheduling.block_user import BlockUser
from corellm.system.memory import DeviceMemory
from corellm.worker.kv_cache import CacheBytes, KVCache, block_bytes
from corellm.worker.model_runner import ModelRunner
from corellm.worker.parts.step_part import StepPart
from corellm.worker.parts.windows import Windows, largest_window, window_layers

logger = logging.getLogger(__name__)


def with_kept_states(
    config: EngineConfig, context: ModelContext, weights: ModelParts, memory: DeviceMemory
) -> tuple[EngineConfig, ModelParts]:
    """Return the configuration and the parts of a model whose layers keep states of sequences; of others, the same.

    The memory of the states is allocated, and the decoder's modules run on it.

    Raises:
        ConfigError: there is not enough memory.
    """
    if weights.kept is None:
        return config, weights
    most_drafts = max((part.most_drafts for part in weights.parts), default=0)
    num_seqs, caching = sequences_at_once(config, context), config.cache.enable_prefix_caching
    alone = weights.attended is None and not window_layers(weights.layout)
    with memory.explaining("the states of sequences", "lower max_num_seqs"):
        states = weights.kept.part(
            weights.language_model, num_seqs, most_drafts, context.dtype, context.device,
            num_seqs if caching and alone else 0,
        )  # fmt: skip
    reason = weights.kept.uncached if alone else "beside states, layers attend to windows or to other states"
    if caching and reason:
        logger.info("prefix caching is off: %s", reason)
        config = replace(config, cache=replace(config.cache, enable_prefix_caching=False))
    return config, replace(weights, parts=[states, *weights.parts])


def most_whole(weights: ModelParts, whole: int) -> int:
    """Return the most tokens of a prompt that must be computed in one step, if those of a span may be `whole`."""
    return whole if weights.kept is None else max(whole, weights.kept.most_whole)


def make_cache(
    weights: ModelParts,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    num_blocks: int,
    num_host_blocks: int,
    num_places: int | None,
) -> KVCache:
    """Return the KV cache, allocated. In layers with a window blocks have places of their own, if there are any."""
    placed = frozenset() if num_places is None else window_layers(weights.layout)
    return KVCache(weights.layout, num_blocks, block_size, dtype, device, num_host_blocks, num_places or 0, placed)


def make_parts(weights: ModelParts, cache: KVCache, runner: ModelRunner) -> list[StepPart]:
    """Return the parts of a model's steps, given its layers' caches."""
    parts: list[StepPart] = []
    if weights.two_way is not None:
        parts.append(weights.two_way.part())
    if cache.placed_layers:  # after the one before, which counts in these layers, too
        parts.append(Windows(cache))
    if weights.attended is not None:
        parts.append(weights.attended.part(runner, weights.language_model))
    return [*parts, *weights.parts]


def make_users(config: EngineConfig, weights: ModelParts, sizes: Sizes, pool: BlockPool) -> list[BlockUser]:
    """Return the users of a model's blocks, of their pool."""
    users: list[BlockUser] = []
    block_size, window = config.cache.block_size, largest_window(weights.layout)
    if sizes.num_places is not None:
        from corellm.scheduling.window_blocks import WindowBlocks

        assert window is not None
        users.append(WindowBlocks(sizes.num_blocks, sizes.num_places, block_size, window))
    if weights.attended is not None:
        caching = config.cache.enable_prefix_caching
        users.append(weights.attended.block_user(pool, block_size, enable_caching=caching))
    elif weights.kept is not None and (of_states := weights.kept.block_user(pool, block_size)) is not None:
        users.append(of_states)
    return users


def most_states(weights: ModelParts, profile: DummyProfile) -> int:
    """Return the most states of a sequence that lie in the KV cache; 0 for a model without any."""
    return 0 if weights.attended is None else weights.attended.most(_largest_item(profile))


def embeddings_at_once(config: EngineConfig, weights: ModelParts, profile: DummyProfile, sizes: Sizes) -> int:
    """Return how many embeddings of items a step must be able to make: those of the largest item, unless they are
    states.
    """
    largest = _largest_item(profile)
    if weights.attended is None:
        return largest
    return weights.attended.embeddings_at_once(largest, (sizes.num_blocks - 1) * config.cache.block_size)


def _largest_item(profile: DummyProfile) -> int:
    return max(profile.max_embeds.values(), default=0)


def cache_bytes(
    config: EngineConfig, context: ModelContext, weights: ModelParts, kv_dtype: torch.dtype, more_tokens: int
) -> CacheBytes:
    """Return the bytes of the KV cache by its number of blocks; `more_tokens` may be added to a step's budget."""
    block_size, windowed = config.cache.block_size, window_layers(weights.layout)
    window, of_parts = largest_window(weights.layout), sum(part.block_bytes for part in weights.parts)
    if window is None or weights.attended is not None or (weights.two_way and not weights.two_way.windows_cut):
        # attended states lie in the same blocks, and are seen whole, as what `two_way` sees; a decoder that never
        # attends has blocks without keys and values: sequences are counted in them
        return CacheBytes(max(1, block_bytes(weights.layout, block_size, kv_dtype) + of_parts))
    from corellm.scheduling.window_blocks import most_places

    longest = wanted_len(config, context)
    places = most_places(
        min(window, longest),
        block_size,
        sequences_at_once(config, context),
        token_budget(config, context, longest) + more_tokens,
    )
    others = {i: layer for i, layer in weights.layout.items() if i not in windowed}
    own = {i: layer for i, layer in weights.layout.items() if i in windowed}
    everywhere = block_bytes(others, block_size, kv_dtype) + of_parts
    return CacheBytes(max(1, everywhere), block_bytes(own, block_size, kv_dtype), places)
