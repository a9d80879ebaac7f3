"""Beyond one machine: a server's engine as replicas on Ray Serve, and batches on Ray Data (`batches`).

In reading order: `options` is what the command adds to `corellm serve`, `cluster` finds or starts Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corellm_ray.batches.pipeline import map_batches as map_batches

__all__ = ["map_batches"]


def __getattr__(name: str) -> Any:
    """`map_batches`, imported when it is asked for: the command line reads this package's metadata without Ray."""
    if name != "map_batches":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from corellm_ray.batches.pipeline import map_batches

    return map_batches
