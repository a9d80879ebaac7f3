"""A newer place of the engine for asyncio."""

from __future__ import annotations

from corellm_vllm.absent.exports import exports

_HOMES = {
    "AsyncLLM": "corellm_vllm.engine.async_llm_engine",
}
__all__ = sorted(_HOMES)
__getattr__ = exports(__name__, _HOMES)
