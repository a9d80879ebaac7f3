"""C++ kernels for CPUs: products with packed weights, paged attention, norms, activations; and decode steps as plans.

`csrc/` has the sources, which `build` compiles into `built/` once for each instruction set; `library` loads the best
that this processor runs. `arguments` mirrors the kernels' arguments. `linear`, `norms`, `activations` and `backend`
call them on tensors; what they equal is torch's own, or a twin in `corellm_kernels.gpu`. `plan` records the calls of a
step and makes them again without Python between them.
"""
