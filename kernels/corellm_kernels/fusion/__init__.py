"""Layers of a model replaced by ones that do the same in fewer kernels.

`fusing` goes through a model; `norms`, `mlp`, `attention` and `decoder_layer` each recognize one kind of layer by its
structure and by what it computes; `layer_swap` has what they share; a `KernelSet` says which kernels they use.
"""
