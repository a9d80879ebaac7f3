"""Another place of the same function."""

from __future__ import annotations

from corellm_vllm.absent.exports import exports

_HOMES = {
    "cleanup_dist_env_and_memory": "corellm_vllm.distributed",
}
__all__ = sorted(_HOMES)
__getattr__ = exports(__name__, _HOMES)
