"""Attention over a paged KV cache: the backend interface, the torch reference, the CPU backend.

Importing this room imports no torch; `select_backend` and `register_attention` do.
"""
