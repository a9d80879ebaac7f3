"""The cache that a transformers decoder of an encoder-decoder gets: what it asks of one, without holding anything.

Its layers' own keys and values pass through, to paged attention, which caches them. Those of the encoder's states are
written to the paged cache when the decoder makes them; where it asks for cached ones, it gets what stands for them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import EncoderDecoderCache

from corellm.transformers_releases import cache_argument

WriteKeysAndValues = Callable[[int, Tensor, Tensor], None]
"""Takes a layer, and keys and values of the step's new states, `[num_new_states, num_kv_heads, head_size]`."""


class CrossAttentionCache(EncoderDecoderCache):  # type: ignore[misc]  # transformers has no types
    """One step's.

    Args:
        positions: `[1, num_tokens]`, of the decoder's tokens.
        keys: what stands for the cached keys and values of states.
        write: gets those of new states; None if the step has no new ones.
    """

    def __init__(self, positions: Tensor, keys: Tensor, write: WriteKeysAndValues | None) -> None:
        # the base's own `__init__` wants caches that hold something
        self.self_attention_cache: Any = _OwnTokens(positions)
        self.cross_attention_cache: Any = _EncoderKeys(keys, write)
        self.is_updated: Any = {} if write is not None else _Always()


class _Always(dict[int, bool]):
    """Every layer's states are in the cache."""

    def get(self, key: int, default: Any = None) -> bool:
        """Return true."""
        return True


class _OwnTokens:
    """Stands for the cached keys and values of the decoder's own tokens."""

    is_compileable = False
    is_sliding = is_linear = is_dummy = (False,)

    def __init__(self, positions: Tensor) -> None:
        # Decoders that take no positions add a token's index in the batch to this: so each has its own position.
        self._lengths = positions[0] - torch.arange(positions.shape[-1], device=positions.device)

    def __len__(self) -> int:
        return 1

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Return the step's own keys and values."""
        return key, value

    def get_seq_length(self, layer_idx: int = 0) -> Tensor:
        """Return how many tokens precede the batch, were it one sequence, for each token: `[num_tokens]`."""
        return self._lengths

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Return where masks begin, which the probe of the decoder looks at."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return how wide masks are, and where they begin."""
        return query_length, 0


class _EncoderKeys:
    """Stands for the cached keys and values of states."""

    def __init__(self, keys: Tensor, write: WriteKeysAndValues | None) -> None:
        self._keys, self._write = keys, write
        self.layers: Any = defaultdict(lambda: SimpleNamespace(keys=keys, values=keys))  # all the same

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write a layer's keys and values, `[1, num_kv_heads, num_new_states, head_size]`."""
        assert self._write is not None
        self._write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1))
        return self._keys, self._keys


def decoder_arguments(
    language_model: nn.Module, positions: Tensor, states: Tensor, cache: CrossAttentionCache
) -> dict[str, Any]:
    """Return what an encoder-decoder's decoder gets beside embeddings and positions.

    Args:
        language_model: the decoder, whose class says how it takes a cache.
        positions: `[1, num_tokens]`.
        states: `[num_new_states, hidden_size]`, of all new prompts one after another; may be empty.
        cache: of this step.
    """
    return {
        "attention_mask": positions.new_ones(1, 1).expand(1, positions.shape[-1]),  # else one is made, by a length
        "encoder_hidden_states": states[None],
        "use_cache": True,
        cache_argument(language_model) or "past_key_values": cache,
    }
