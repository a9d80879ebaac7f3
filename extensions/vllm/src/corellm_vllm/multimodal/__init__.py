"""Items of prompts, and their URLs."""

from corellm_vllm.absent.exports import exports

__getattr__ = exports(__name__)
