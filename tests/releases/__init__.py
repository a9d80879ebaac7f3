"""Releases of transformers, torch and Python beside those of the development install: `python -m tests.releases`."""
