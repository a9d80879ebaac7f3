"""The Ray cluster that this process works on: one that was named, or a local one, which ends with it.

Knows how Ray is started and stopped; knows no model.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

REPLICA_SETTINGS = {
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",  # it waits for the engine, and computes nothing
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(2**31 - 1),  # items' tensors take more than gRPC's 4 MB
}
"""Settings that replicas read, too, on each machine of the cluster."""
_SETTINGS = {
    **REPLICA_SETTINGS,
    "RAY_USAGE_STATS_ENABLED": "0",  # it reports to its makers otherwise
    "RAY_worker_niceness": "0",  # else replicas on a local cluster run after all other processes
    "RAY_ENABLE_AUTO_CONNECT": "0",  # its threads would start a cluster when they look for one that was ended
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # its default to come; it warns until then
    "RAY_SERVE_QUEUE_LENGTH_CACHE_TIMEOUT_S": "3600",  # all requests pass this process: what it counts stays true
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",  # a request takes a third of what it takes as a call of an actor
}
for _name, _value in _SETTINGS.items():
    os.environ.setdefault(_name, _value)  # Ray reads most when it is imported

import ray  # noqa: E402

from corellm.errors import ConfigError  # noqa: E402

logger = logging.getLogger(__name__)


@contextmanager
def joined(
    address: str | None, *, num_cpus: int | None = None, object_store_memory: int | None = None
) -> Iterator[bool]:
    """Be connected to a cluster; yields whether it was started here, and then ends it at the end.

    Args:
        address: of a cluster, or `"auto"` for the one that this machine is part of; `"local"` for a new one on this
            machine; None for that of the variable `RAY_ADDRESS`, else a new one.
        num_cpus: cores of a new one; None for those of the machine.
        object_store_memory: bytes of shared memory of a new one; None for Ray's choice.

    Raises:
        ConfigError: there is no cluster at the address.
    """
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    if ray.is_initialized():
        yield False
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    is_ours = address == "local"
    own: dict[str, Any] = {
        "num_cpus": num_cpus, "object_store_memory": object_store_memory, "include_dashboard": False
    }  # fmt: skip
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **(own if is_ours else {}))
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(f"there is no Ray cluster at {address}: {error}; start one with `ray start`") from error
    try:
        yield is_ours
    finally:
        ray.shutdown()
