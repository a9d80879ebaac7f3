"""LoRA adapters of requests, which scripts name; corellm has none yet."""

from __future__ import annotations

from typing import Any

from corellm.errors import InvalidParameterError
from corellm_vllm.absent.exports import exports
from corellm_vllm.absent.names import NO_LORA


class LoRARequest:
    """An adapter of a request. The class is there for scripts that only annotate with it.

    Raises:
        InvalidParameterError: when one is made.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise InvalidParameterError(f"LoRARequest: {NO_LORA}", param="lora_request")


__all__ = ["LoRARequest"]
__getattr__ = exports(__name__)
