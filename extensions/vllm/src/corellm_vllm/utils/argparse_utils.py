"""A newer place of the parser."""

from __future__ import annotations

from corellm_vllm.absent.exports import exports

_HOMES = {
    "FlexibleArgumentParser": "corellm_vllm.utils",
}
__all__ = sorted(_HOMES)
__getattr__ = exports(__name__, _HOMES)
