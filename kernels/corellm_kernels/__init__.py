"""Triton kernels for NVIDIA GPUs: paged attention, rotary positions and cache writes, norms, activations, merging,
sampling.

Each file is one family of kernels: what it computes, how many bytes and FLOPs that takes, the kernels, the functions
that launch them, and under the same name with `_reference` a plain torch twin that any device runs and every test
compares with. Nothing here knows corellm but `backend`, which offers the attention to it.

Triton is imported with a kernel's module, never with this package.
"""
