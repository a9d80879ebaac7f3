"""Writing of checkpoints whose weights are rounded: what `corellm quantize` does."""
