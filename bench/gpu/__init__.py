"""Kernels, engine and workloads on one GPU, measured against the GPU's own ceilings: `python bench/gpu/run.py`."""
