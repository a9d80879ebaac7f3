"""Errors of engines."""

from __future__ import annotations

from corellm_vllm.absent.exports import exports

_HOMES = {
    "EngineDeadError": "corellm.errors",
    "EngineGenerateError": "corellm.errors:RequestFailedError",
}
__all__ = sorted(_HOMES)
__getattr__ = exports(__name__, _HOMES)
