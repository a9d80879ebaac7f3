"""Triton kernels for NVIDIA GPUs: paged attention, rotary positions and cache writes, norms, activations, merging,
sampling.

A file of kernels is one family of them: what it computes, how many bytes and FLOPs that takes, the kernels, the
functions that launch them, and under the same name with `_reference` a plain torch twin that any device runs and every
test compares with. `kernel_set` lists what fused layers use of them.

`backend` imports torch, and Triton when a backend is made; `launch` imports torch; every other file torch and Triton.
"""
