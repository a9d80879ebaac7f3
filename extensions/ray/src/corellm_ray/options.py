"""Options that `corellm serve` has with this distribution: how many replicas, of which resources, in which cluster.

Frozen, documented and validated once; imports no Ray.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from corellm.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ReplicaOptions:
    """Replicas of the engine on Ray Serve, behind one address."""

    replicas: str | None = None
    """Engines behind the server, each in a process of its own on a Ray cluster: a number, or as many as the load asks
    for, e.g. 1:4. None for one engine, without Ray."""
    ray_address: str | None = None
    """Cluster to run them on, e.g. ray-head:6379, or auto for the one that this machine is part of, or local for a new
    one on this machine, which ends with the server; None for that of the variable RAY_ADDRESS, else local."""
    replica_app: str | None = None
    """Name of the replicas' application in the cluster: a server that is started again with the same one takes it over.
    None for corellm, or with several models corellm-NAME."""
    replica_cpus: float = 1.0
    """Cores of a replica, asked of Ray; its threads keep to them."""
    replica_gpus: float = 0.0
    """GPUs of a replica, asked of Ray."""
    replica_router: Literal["prefix", "load", "round-robin"] = "prefix"
    """How a request finds its replica: prefix, where the same system prompt and items were before, unless that one has
    much more to do than others; load, the less busy of two; round-robin, each in turn."""
    replica_queue: int = 16
    """Requests of a replica beyond which more replicas are started, where a range of them is given."""
    replica_hang_timeout: float = 300.0
    """Seconds without a finished step, while requests are there, after which a replica is replaced; longer than the
    longest step."""
    replica_drain_timeout: float = 60.0
    """Seconds that the requests of a replica have to finish when it is replaced or not needed any more; then they go
    on on another one."""
    object_store_memory: int = 128 << 20
    """Shared memory of a local cluster, which requests pass through."""

    def __post_init__(self) -> None:
        if self.replicas is not None and not re.fullmatch(r"[1-9]\d{0,3}(:[1-9]\d{0,3})?", str(self.replicas)):
            raise ConfigError(f"replicas must be a number from 1 or a range like 1:4, got {self.replicas!r:.100}")
        if self.replicas is not None and self.fewest > self.most:
            raise ConfigError(f"replicas: {self.replicas!r} ends before it begins; write the smaller number first")
        if not 0 < self.replica_cpus <= 1024:
            raise ConfigError(f"replica_cpus must be above 0 and at most 1024, got {self.replica_cpus!r:.100}")
        if not 0 <= self.replica_gpus <= 64:
            raise ConfigError(f"replica_gpus must be from 0 to 64, got {self.replica_gpus!r:.100}")
        if not 1 <= self.replica_queue <= 100_000:
            raise ConfigError(f"replica_queue must be from 1 to 100000, got {self.replica_queue!r:.100}")
        if not 2 <= self.replica_hang_timeout <= 1e9:
            raise ConfigError(f"replica_hang_timeout must be 2 or more, got {self.replica_hang_timeout!r:.100}")
        if not 0 <= self.replica_drain_timeout <= 1e9:
            raise ConfigError(f"replica_drain_timeout must be 0 or more, got {self.replica_drain_timeout!r:.100}")
        if self.object_store_memory < 80 << 20:
            raise ConfigError(f"object_store_memory must be 80M or more, got {self.object_store_memory!r:.100}")
        if self.replica_router not in ("prefix", "load", "round-robin"):
            raise ConfigError(f"replica_router must be prefix, load or round-robin, got {self.replica_router!r:.100}")

    @property
    def fewest(self) -> int:
        """The fewest replicas that run."""
        return int(str(self.replicas).partition(":")[0])

    @property
    def most(self) -> int:
        """The most replicas that run."""
        return int(str(self.replicas).rpartition(":")[2])
