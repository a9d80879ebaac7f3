"""Options that `corellm batch` has with this distribution. Imports neither torch nor Ray."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from corellm.errors import ConfigError
from corellm_server.offers import BatchOffer


@dataclass(frozen=True, kw_only=True)
class RayBatchOptions:
    """Workers on a Ray cluster, each with an engine, that do the requests of a file."""

    ray: bool = False
    """Have the requests done by Ray Data: the input may be Parquet or CSV, too (`*.parquet`, `*.csv`), and results are
    written as they come."""
    ray_address: str | None = None
    """Cluster to run them on, e.g. ray-head:6379, or auto for the one that this machine is part of, or local for a new
    one on this machine, which ends with the command; None for that of the variable RAY_ADDRESS, else local."""
    ray_workers: int = 1
    """Workers, each with a copy of the model."""
    ray_worker_cpus: float = 1.0
    """Cores of a worker, asked of Ray."""
    ray_worker_gpus: float = 0.0
    """GPUs of a worker, asked of Ray."""
    object_store_memory: int = 128 << 20
    """Shared memory of a local cluster; requests that it does not hold are on its disk."""
    keep_order: bool = False
    """Write results in the order of the requests: those that are finished wait for those before."""

    def __post_init__(self) -> None:
        if not 1 <= self.ray_workers <= 4096:
            raise ConfigError(f"ray_workers must be from 1 to 4096, got {self.ray_workers!r:.100}")
        if not 0 < self.ray_worker_cpus <= 1024:
            raise ConfigError(f"ray_worker_cpus must be above 0 and at most 1024, got {self.ray_worker_cpus!r:.100}")
        if not 0 <= self.ray_worker_gpus <= 64:
            raise ConfigError(f"ray_worker_gpus must be from 0 to 64, got {self.ray_worker_gpus!r:.100}")
        if self.object_store_memory < 80 << 20:
            raise ConfigError(f"object_store_memory must be 80M or more, got {self.object_store_memory!r:.100}")


def _run(*arguments: Any) -> int:
    from corellm_ray.batches.command import run

    return run(*arguments)


OFFER = BatchOffer("workers on Ray", RayBatchOptions, "ray", _run)
"""What `corellm batch` has with this distribution."""
