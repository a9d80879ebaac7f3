"""Settings that have a class of their own."""

from __future__ import annotations

from corellm_vllm.absent.exports import exports

_HOMES = {
    "PoolerConfig": "corellm_pooling.params",
}
__all__ = sorted(_HOMES)
__getattr__ = exports(__name__, _HOMES)
