"""Kernels for the engine, found by it as an extension, and layers that use them.

`gpu/` has Triton kernels for NVIDIA GPUs, `cpu/` has C++ kernels for CPUs and decode steps as recorded plans, `fusion/`
replaces layers of a model by ones that use either, `pixel_values` speeds processors up; `extension` registers all this.

Of corellm, only the marker of hooks, the attention interface, errors and the rounding of weights are imported. This
package imports nothing, `extension` no torch, no Triton and no compiled code.
"""
