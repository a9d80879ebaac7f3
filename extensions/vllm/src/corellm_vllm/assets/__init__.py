"""Media to try a script with, made on the spot."""

from corellm_vllm.absent.exports import exports

__getattr__ = exports(__name__)
