"""What scripts call between two models; there is one process, and nothing else to end."""

from __future__ import annotations

import gc

from corellm_vllm.absent.exports import exports


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Free the memory of a deleted `LLM` at once, on a GPU, too."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


__all__ = ["cleanup_dist_env_and_memory"]
__getattr__ = exports(__name__)
