"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL for corellm: images and video of any size. The original Qwen-VL is `original`."""

from corellm_qwen_vl.qwen2 import Qwen2VL
from corellm_qwen_vl.qwen3 import Qwen3VL

__all__ = ["Qwen2VL", "Qwen3VL"]
