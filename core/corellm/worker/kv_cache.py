"""The KV cache's tensors: how large a layer's block is, how many blocks fit, and moving blocks to the host and back.

Knows block numbers; the block manager knows which sequence has which block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from corellm.attention.backend import LayerCache
from corellm.config import CacheConfig
from corellm.errors import ConfigError
from corellm.system.memory import DeviceMemory
from corellm.system.pages import map_pages

QUANTIZED = (torch.int8, torch.float8_e4m3fn)
"""Types of the cache that store a factor for every token and head."""


@dataclass(frozen=True)
class LayerLayout:
    """Shape of one layer's keys and values per token."""

    num_kv_heads: int
    key_size: int
    value_size: int
    shares: int | None = None
    """The layer in whose cache its keys and values lie: those of that layer, or of blocks that are not that layer's."""
    window: int | None = None
    """Most tokens that a token sees, itself included; None for all."""


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


@dataclass(frozen=True)
class CacheBytes:
    """Bytes of a cache, by its number of blocks."""

    block: int
    """Bytes of a block in the layers that have all blocks."""
    place: int = 0
    """Bytes of a block in the layers that have fewer (those with a window)."""
    most_places: int = 0
    """How many blocks can have keys and values there, the null block included."""

    def of(self, num_blocks: int) -> int:
        """Return the bytes of a cache."""
        return num_blocks * self.block + min(num_blocks, self.most_places) * self.place

    def blocks_within(self, given: int) -> int:
        """Return the most blocks whose cache takes no more than `given` bytes."""
        if given <= self.most_places * (self.block + self.place):
            return given // (self.block + self.place)
        return (given - self.most_places * self.place) // max(1, self.block)


def choose_num_blocks(config: CacheConfig, cache: CacheBytes, useful_tokens: int, memory: DeviceMemory) -> int:
    """Number of blocks to allocate, with the null block.

    Args:
        config: of the cache.
        cache: bytes of it.
        useful_tokens: most tokens that can be in the cache at once.
        memory: of the device.

    Raises:
        ConfigError: the memory given does not hold a single block.
    """
    if config.num_kv_blocks is not None:
        wanted = cache.of(config.num_kv_blocks + 1)
        if wanted > memory.free():
            raise ConfigError(
                f"num_kv_blocks={config.num_kv_blocks} takes {wanted:,} bytes, but {memory.free():,} are free; lower it"
            )
        return config.num_kv_blocks + 1
    useful = -(-useful_tokens // config.block_size)
    given = config.kv_cache_memory if config.kv_cache_memory is not None else memory.left_for_blocks()
    blocks = min(cache.blocks_within(given), useful)
    if blocks < 1:
        raise ConfigError(
            f"kv_cache_memory of {given:,} bytes does not hold one block of {cache.of(1):,} bytes; "
            f"raise it, or lower block_size (now {config.block_size})"
        )
    return int(blocks) + 1


class KVCache:
    """All layers' caches on the device, and the host blocks for swapped-out sequences.

    Args:
        layout: by layer.
        num_blocks, block_size: on the device, the null block included.
        dtype, device: of keys and values.
        num_host_blocks: in host memory.
        num_places: blocks that `placed_layers` have.
        placed_layers: in which blocks have places of their own.

    Attributes:
        layers: by layer, in the order in which they attend.
        places: `[num_blocks]`, the place of each block in `placed_layers`, 0 for none.
    """

    def __init__(
        self,
        layout: dict[int, LayerLayout],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        num_host_blocks: int = 0,
        num_places: int = 0,
        placed_layers: frozenset[int] = frozenset(),
    ) -> None:
        def make(blocks: int, places: int, where: torch.device) -> dict[int, LayerCache]:
            own = {
                i: _make_layer(
                    layer, (places if i in placed_layers else blocks, block_size, layer.num_kv_heads), dtype, where
                )
                for i, layer in layout.items()
                if layer.shares is None
            }
            return {i: own[i if layer.shares is None else layer.shares] for i, layer in layout.items()}

        self.block_size, self.placed_layers = block_size, placed_layers
        self.places = np.zeros(num_blocks, dtype=np.int64)
        self.layers = make(num_blocks, num_places, device)
        self._host = make(num_host_blocks, num_host_blocks, torch.device("cpu")) if num_host_blocks else {}

    @property
    def tensors(self) -> Iterator[Tensor]:
        """The tensors of all layers on the device; those of layers that share a cache come again."""
        return _tensors_of(self.layers)

    @property
    def host_tensors(self) -> Iterator[Tensor]:
        """Tensors of blocks in host memory."""
        return _tensors_of(self._host)

    def touch(self, num_blocks: int) -> None:
        """Write the first blocks: memory is given at the first write, for which the first requests would wait."""
        for tensor in self.tensors:
            if tensor.device.type == "cpu":
                tensor[:num_blocks].zero_()

    def forget_places(self) -> None:
        """Take every block's place, after a step was interrupted."""
        self.places[:] = 0

    def move(self, changes: Sequence[tuple[int, int]]) -> None:
        """Give blocks other places: `(block, place)` pairs."""
        for block, place in changes:
            self.places[block] = place

    def swap_out(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks to the host: `(device block, host block)` pairs, one or more."""
        device, host = (list(side) for side in zip(*pairs, strict=True))
        self._copy(self.layers, self._host, device, host)

    def swap_in(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks back: `(host block, device block)` pairs, one or more."""
        host, device = (list(side) for side in zip(*pairs, strict=True))
        self._copy(self._host, self.layers, host, device)

    def _copy(
        self, source: dict[int, LayerCache], target: dict[int, LayerCache], from_: list[int], to: list[int]
    ) -> None:
        """Copy blocks of each layer; where they have places, blocks without one to the null block, or from it."""
        placed = (self.places[from_].tolist(), to) if target is self._host else (from_, self.places[to].tolist())
        own = {id(cache): layer for layer, cache in source.items()}  # some layers share one
        for layer in own.values():
            sides = placed if layer in self.placed_layers else (from_, to)
            _copy_blocks(source[layer], target[layer], *map(torch.tensor, sides))


def _tensors_of(layers: Mapping[int, LayerCache]) -> Iterator[Tensor]:
    for cache in layers.values():
        yield from (x for x in (cache.key, cache.value, cache.key_scale, cache.value_scale) if x is not None)


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


def _copy_blocks(source: LayerCache, target: LayerCache, from_blocks: Tensor, to_blocks: Tensor) -> None:
    for kind in ("key", "value", "key_scale", "value_scale"):
        tensor, other = getattr(source, kind), getattr(target, kind)
        if tensor is not None:
            blocks = tensor[from_blocks.to(tensor.device)]
            other[to_blocks.to(other.device)] = blocks.to(other.device)
