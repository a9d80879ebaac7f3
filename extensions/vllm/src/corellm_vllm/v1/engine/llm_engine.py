"""A newer place of the engine that a script steps."""

from __future__ import annotations

from corellm_vllm.absent.exports import exports

_HOMES = {
    "LLMEngine": "corellm_vllm.engine.llm_engine",
}
__all__ = sorted(_HOMES)
__getattr__ = exports(__name__, _HOMES)
