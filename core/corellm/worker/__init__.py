"""The worker room: everything with tensors between a scheduled batch and sampled tokens."""
