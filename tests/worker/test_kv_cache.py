"""The KV cache has the configured size, and swapped blocks come back unchanged."""

from __future__ import annotations

import pytest
import torch

from corellm.config import CacheConfig
from corellm.errors import ConfigError
from corellm.worker.kv_cache import KVCache, LayerLayout, block_bytes, choose_num_blocks
from corellm.worker.memory import DeviceMemory

MEMORY = DeviceMemory(torch.device("cpu"), 0.9)
LAYOUT = {0: LayerLayout(2, 8, 8), 3: LayerLayout(1, 4, 6)}


def test_block_bytes_counts_every_layer() -> None:
    """Keys and values, per layer, per token of the block."""
    assert block_bytes(LAYOUT, 16, torch.float32) == (2 * 16 + 1 * 10) * 16 * 4


def test_number_of_blocks() -> None:
    """The number given wins; then the memory; never more than could be used; the null block is extra."""
    assert choose_num_blocks(CacheConfig(num_kv_blocks=7), 100, 10**6, MEMORY) == 8
    assert choose_num_blocks(CacheConfig(kv_cache_memory=1000), 100, 10**6, MEMORY) == 11
    assert choose_num_blocks(CacheConfig(kv_cache_memory=10**9), 100, 33, MEMORY) == 4
    assert choose_num_blocks(CacheConfig(), 100, 64, MEMORY) == 5
    with pytest.raises(ConfigError, match="99 bytes does not hold one block of 100 bytes"):
        choose_num_blocks(CacheConfig(kv_cache_memory=99), 100, 64, MEMORY)


def test_swapping_round_trip() -> None:
    """Blocks go to the host and back to other places, every layer, keys and values."""
    cache = KVCache(LAYOUT, 6, 4, torch.float32, torch.device("cpu"), num_host_blocks=3)
    for layer in cache.layers.values():
        layer.key.normal_()
        layer.value.normal_()
    before = {i: (layer.key.clone(), layer.value.clone()) for i, layer in cache.layers.items()}
    cache.swap_out([(2, 0), (5, 2)])
    for layer in cache.layers.values():
        layer.key.zero_()
        layer.value.zero_()
    cache.swap_in([(2, 1), (0, 4)])
    for i, layer in cache.layers.items():
        for now, then in zip((layer.key, layer.value), before[i], strict=True):
            assert torch.equal(now[1], then[5])
            assert torch.equal(now[4], then[2])
            assert not now[[0, 2, 3, 5]].any()
