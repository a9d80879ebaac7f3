"""The LoRA adapter of a request: corellm's own class."""

from __future__ import annotations

from corellm_vllm.absent.exports import exports

_HOMES = {"LoRARequest": "corellm_lora.lora_request"}
__all__ = sorted(_HOMES)
__getattr__ = exports(__name__, _HOMES)
