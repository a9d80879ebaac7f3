"""Beyond one machine: a server's engine as replicas on Ray Serve.

In reading order: `options` is what the command adds to `corellm serve`, `cluster` finds or starts Ray.
"""
