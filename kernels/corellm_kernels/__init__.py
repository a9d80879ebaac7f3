"""Triton kernels for GPUs, each with its torch reference twin. None yet: this release runs on CPUs."""
