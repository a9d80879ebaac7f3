"""The Ray cluster that this process works on: one that is there, or a local one, which ends with it.

Knows how Ray is started and stopped; knows no model.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

for _name in (
    "RAY_USAGE_STATS_ENABLED",  # it reports to its makers otherwise
    "RAY_ENABLE_AUTO_CONNECT",  # its threads would start a cluster when they look for one that was ended
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO",  # its default to come; it warns until then
):
    os.environ.setdefault(_name, "0")  # Ray reads them when it is imported

import ray  # noqa: E402

from corellm.errors import ConfigError  # noqa: E402

logger = logging.getLogger(__name__)


@contextmanager
def joined(
    address: str | None, *, num_cpus: float | None = None, object_store_memory: int | None = None
) -> Iterator[bool]:
    """Be connected to a cluster; yields whether it was started here, and then ends it at the end.

    Args:
        address: of a cluster; None for the one that this machine is part of, else a new local one.
        num_cpus: cores of a new one; None for those of the machine.
        object_store_memory: bytes of shared memory of a new one; None for Ray's choice.

    Raises:
        ConfigError: there is no cluster at the address.
    """
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    if ray.is_initialized():
        yield False
        return
    try:
        is_ours = False
        try:
            ray.init(address or "auto", log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError:
            if address is not None:
                raise
            is_ours = True
            ray.init(
                "local", num_cpus=num_cpus, object_store_memory=object_store_memory, include_dashboard=False,
                log_to_driver=False, logging_level=logging.ERROR,
            )  # fmt: skip
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"no Ray cluster at {address or 'this machine'}: {error}; start one with ray start"
        ) from error
    try:
        yield is_ours
    finally:
        ray.shutdown()
