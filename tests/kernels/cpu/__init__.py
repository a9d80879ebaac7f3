"""Of `corellm_kernels.cpu`: kernels equal torch, results do not depend on what runs beside them, plans equal steps."""
