"""An older place of what requests give."""

from __future__ import annotations

from corellm_vllm.absent.exports import exports

_HOMES = {
    "Logprob": "corellm.outputs",
    "RequestMetrics": "corellm.outputs",
}
__all__ = sorted(_HOMES)
__getattr__ = exports(__name__, _HOMES)
