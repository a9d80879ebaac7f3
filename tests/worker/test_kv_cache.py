"""The KV cache has the configured size, and swapped blocks come back unchanged."""

from __future__ import annotations

import ctypes
import mmap

import pytest
import torch

from corellm.config import CacheConfig
from corellm.errors import ConfigError
from corellm.system.memory import DeviceMemory
from corellm.worker.kv_cache import CacheBytes, KVCache, LayerLayout, block_bytes, choose_num_blocks
from corellm.worker.parts.windows import window_layers

BYTES = CacheBytes(100)
MEMORY = DeviceMemory(torch.device("cpu"), 0.9)
LAYOUT = {0: LayerLayout(2, 8, 8), 3: LayerLayout(1, 4, 6)}


def test_block_bytes_counts_every_layer() -> None:
    """Keys and values, per layer, per token of the block."""
    assert block_bytes(LAYOUT, 16, torch.float32) == (2 * 16 + 1 * 10) * 16 * 4


def test_layers_that_share_keys_and_values_have_one_cache() -> None:
    """Counted once, moved once."""
    shared = {**LAYOUT, 4: LayerLayout(2, 8, 8, shares=0), 5: LayerLayout(1, 4, 6, shares=3)}
    assert block_bytes(shared, 16, torch.float32) == block_bytes(LAYOUT, 16, torch.float32)
    cache = KVCache(shared, 6, 4, torch.float32, torch.device("cpu"), num_host_blocks=3)
    assert cache.layers[4] is cache.layers[0]
    assert cache.layers[5] is cache.layers[3]
    cache.layers[4].key[2] = 7
    cache.swap_out([(2, 0)])
    cache.swap_in([(0, 5)])
    assert bool((cache.layers[0].key[5] == 7).all())


def test_a_layer_has_a_window_only_if_all_that_share_its_keys_have() -> None:
    own, sharing = LayerLayout(1, 4, 4, window=8), LayerLayout(1, 4, 4, shares=0, window=8)
    whole = LayerLayout(1, 4, 4)
    assert window_layers({0: own, 1: whole, 2: sharing}) == {0, 2}
    assert window_layers({0: own, 1: whole, 2: LayerLayout(1, 4, 4, shares=0)}) == frozenset()
    assert window_layers({0: whole, 1: LayerLayout(1, 4, 4, shares=0, window=8)}) == frozenset()


def test_swapping_layers_with_a_window_moves_places() -> None:
    """Keys and values go from a block's place to its host block, and back to its new place."""
    layout = {0: LayerLayout(1, 4, 4), 1: LayerLayout(1, 4, 4, window=8)}
    cache = KVCache(
        layout, 9, 2, torch.float32, torch.device("cpu"), num_host_blocks=3, num_places=4, placed_layers=frozenset({1})
    )
    assert (len(cache.layers[0].key), len(cache.layers[1].key)) == (9, 4)
    cache.move([(5, 2), (6, 3)])
    cache.layers[0].key[5], cache.layers[1].key[2] = 1, 2
    cache.swap_out([(5, 1), (7, 0)])
    cache.move([(5, 0), (8, 1)])
    cache.layers[0].key.zero_()
    cache.layers[1].key.zero_()
    cache.swap_in([(1, 8)])
    assert bool((cache.layers[0].key[8] == 1).all())
    assert bool((cache.layers[1].key[1] == 2).all())
    assert not cache.layers[1].key[[2, 3]].any()


def test_number_of_blocks() -> None:
    """The number given wins; then the memory; never more than could be used; the null block is extra."""
    assert choose_num_blocks(CacheConfig(num_kv_blocks=7), BYTES, 10**6, MEMORY) == 8
    assert choose_num_blocks(CacheConfig(kv_cache_memory=1000), BYTES, 10**6, MEMORY) == 11
    assert choose_num_blocks(CacheConfig(kv_cache_memory=10**9), BYTES, 33, MEMORY) == 4
    assert choose_num_blocks(CacheConfig(), BYTES, 64, MEMORY) == 5
    with pytest.raises(ConfigError, match=r"99 bytes .* 100 bytes"):
        choose_num_blocks(CacheConfig(kv_cache_memory=99), BYTES, 64, MEMORY)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_takes_no_memory_before_it_is_written(dtype: torch.dtype) -> None:
    """It reads as zeros, and keeps what is written."""
    cache = KVCache({0: LayerLayout(4, 64, 64)}, 4000, 16, dtype, torch.device("cpu"), num_host_blocks=4000)
    layer = cache.layers[0]
    tensors = [t for t in (layer.key, layer.value, layer.key_scale, layer.value_scale) if t is not None]
    assert [resident_pages(tensor) for tensor in tensors] == [0] * len(tensors)
    for tensor in tensors:
        assert tensor.dtype == (dtype if tensor.ndim == 4 else torch.float32)
        tensor[7] = 1
        assert 0 < resident_pages(tensor) <= 2 * HUGE_PAGE  # neighbours may share one
        assert tensor.any(dim=-1).flatten(1).all(dim=1).nonzero().flatten().tolist() == [7]
    cache.swap_out([(7, 3)])
    assert resident_pages(cache._host[0].key) <= 2 * HUGE_PAGE


def test_touching_takes_memory_for_the_first_blocks() -> None:
    """And for no more than a huge page behind them."""
    cache = KVCache({0: LayerLayout(4, 64, 64)}, 8000, 16, torch.int8, torch.device("cpu"))
    layer = cache.layers[0]
    tensors = [t for t in (layer.key, layer.value, layer.key_scale, layer.value_scale) if t is not None]
    cache.touch(2000)
    for tensor in tensors:
        first = tensor[:2000]
        assert resident_pages(first) * mmap.PAGESIZE >= first.nbytes
        assert not first.any()
    for tensor in (layer.key, layer.value):  # 32 MB each
        assert resident_pages(tensor) < tensor.nbytes // mmap.PAGESIZE // 2


HUGE_PAGE = (2 << 20) // mmap.PAGESIZE


def resident_pages(tensor: torch.Tensor) -> int:
    """Number of a tensor's pages that are in memory."""
    start = tensor.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    length = tensor.data_ptr() + tensor.nbytes - start
    pages = (ctypes.c_ubyte * -(-length // mmap.PAGESIZE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(length), pages) == 0
    return sum(page & 1 for page in pages)
