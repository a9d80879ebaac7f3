"""Triton kernels for NVIDIA GPUs: paged attention, rotary positions and cache writes, norms, activations, merging,
sampling.

A file of kernels is one family of them: what it computes, how many bytes and FLOPs that takes, the kernels, the
functions that launch them, and under the same name with `_reference` a plain torch twin that any device runs and every
test compares with. The files `fused_*`, `fusing` and `layer_swap` replace layers of a model by ones that use kernels.

Of corellm, `extension` imports the marker of hooks, `backend` and `fused_attention` the attention interface; no other
file imports it. This package imports nothing, `extension` no torch and no Triton; `backend` imports torch, and Triton
when a backend is made; `launch` and `layer_swap` import torch; every other file imports torch and Triton.
"""
