"""The KV cache's tensors: how large a layer's block is, how many blocks fit, and moving blocks to the host and back.

Knows block numbers; the block manager knows which sequence has which block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from corellm.attention.backend import LayerCache
from corellm.config import CacheConfig
from corellm.errors import ConfigError
from corellm.pages import map_pages
from corellm.worker.memory import DeviceMemory

QUANTIZED = (torch.int8, torch.float8_e4m3fn)
"""Types of the cache that store a factor for every token and head."""


@dataclass(frozen=True)
class LayerLayout:
    """Shape of one layer's keys and values per token."""

    num_kv_heads: int
    key_size: int
    value_size: int
    shares: int | None = None
    """The layer whose keys and values it attends to, instead of ones of its own."""


def block_bytes(layout: dict[int, LayerLayout], block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, with the factors of a quantized cache."""
    factors = 2 * torch.float32.itemsize if dtype in QUANTIZED else 0
    per_token = sum(
        layer.num_kv_heads * ((layer.key_size + layer.value_size) * dtype.itemsize + factors)
        for layer in layout.values()
        if layer.shares is None
    )
    return per_token * block_size


def cache_dtype(name: str, model_dtype: torch.dtype) -> torch.dtype:
    """Return the type of keys and values in the cache for `kv_cache_dtype`."""
    return {"auto": model_dtype, "int8": torch.int8, "fp8": torch.float8_e4m3fn}[name]


def choose_num_blocks(config: CacheConfig, bytes_per_block: int, useful_tokens: int, memory: DeviceMemory) -> int:
    """Number of blocks to allocate, with the null block.

    Args:
        config: of the cache.
        bytes_per_block: over all layers.
        useful_tokens: most tokens that can be in the cache at once.
        memory: of the device.

    Raises:
        ConfigError: the memory given does not hold a single block.
    """
    if config.num_kv_blocks is not None:
        wanted = (config.num_kv_blocks + 1) * bytes_per_block
        if wanted > memory.free():
            raise ConfigError(
                f"num_kv_blocks={config.num_kv_blocks} takes {wanted:,} bytes, but {memory.free():,} are free; lower it"
            )
        return config.num_kv_blocks + 1
    useful = -(-useful_tokens // config.block_size)
    given = config.kv_cache_memory if config.kv_cache_memory is not None else memory.left_for_blocks()
    blocks = min(given // bytes_per_block, useful)
    if blocks < 1:
        raise ConfigError(
            f"kv_cache_memory of {given:,} bytes does not hold one block of {bytes_per_block:,} bytes; "
            f"raise it, or lower block_size (now {config.block_size})"
        )
    return int(blocks) + 1


class KVCache:
    """All layers' caches on the device, and the host blocks for swapped-out sequences."""

    def __init__(
        self,
        layout: dict[int, LayerLayout],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        num_host_blocks: int = 0,
    ) -> None:
        def make(blocks: int, where: torch.device) -> dict[int, LayerCache]:
            own = {
                i: _make_layer(layer, (blocks, block_size, layer.num_kv_heads), dtype, where)
                for i, layer in layout.items()
                if layer.shares is None
            }
            return {i: own[i if layer.shares is None else layer.shares] for i, layer in layout.items()}

        self.layers = make(num_blocks, device)
        self._host = make(num_host_blocks, torch.device("cpu")) if num_host_blocks else {}

    def touch(self, num_blocks: int) -> None:
        """Write the first blocks: memory is given at the first write, for which the first requests would wait."""
        for cache in self.layers.values():
            for tensor in (cache.key, cache.value, cache.key_scale, cache.value_scale):
                if tensor is not None and tensor.device.type == "cpu":
                    tensor[:num_blocks].zero_()

    def swap_out(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks to the host: `(device block, host block)` pairs."""
        _copy_blocks(self.layers, self._host, pairs)

    def swap_in(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks back: `(host block, device block)` pairs."""
        _copy_blocks(self._host, self.layers, pairs)


def _make_layer(
    layer: LayerLayout, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> LayerCache:
    """Return a layer's tensors, zeros because padding reads the null block."""
    key, value = (_zeros((*shape, size), dtype, device) for size in (layer.key_size, layer.value_size))
    if dtype not in QUANTIZED:
        return LayerCache(key, value)
    return LayerCache(key, value, *(_zeros(shape, torch.float32, device) for _ in range(2)))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros; on the host they take no memory until they are written.

    `torch.zeros` would write every page; the system gives pages of zeros when they are first used.
    """
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or not size:
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = map_pages(size)  # the tensor holds on to them
    return torch.frombuffer(pages, dtype=torch.uint8).view(dtype).view(shape)


def _copy_blocks(source: dict[int, Any], target: dict[int, Any], pairs: Sequence[tuple[int, int]]) -> None:
    if not pairs:
        return
    from_blocks, to_blocks = (torch.tensor(side) for side in zip(*pairs, strict=True))
    own = {id(cache): (layer, cache) for layer, cache in source.items()}  # some layers share one
    for layer, cache in own.values():
        for kind in ("key", "value", "key_scale", "value_scale"):
            tensor, other = getattr(cache, kind), getattr(target[layer], kind)
            if tensor is not None:
                blocks = tensor[from_blocks.to(tensor.device)]
                other[to_blocks.to(other.device)] = blocks.to(other.device)
