"""LoRA, which is refused."""

from corellm_vllm.absent.exports import exports

__getattr__ = exports(__name__)
