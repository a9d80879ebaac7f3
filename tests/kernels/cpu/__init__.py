"""Tests of `corellm_kernels.cpu`: kernels equal torch, what runs beside them changes no result, plans equal steps."""
