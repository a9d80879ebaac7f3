"""A model opened as replicas: the cluster, the fleet, and the front end that prepares prompts for it.

Knows the order of starting and ending, and the signal that replaces replicas.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from corellm_ray.cluster import joined  # isort: skip  # first: it sets what Ray reads when it is imported

from corellm.config import EngineConfig
from corellm.engine.process.front_end import open_front_end, refuse_early
from corellm.engine.process.messages import Ready, decode_from_engine
from corellm.errors import EngineDeadError
from corellm.loading.locating import locate
from corellm.system.process import collector_paused, set_up_threads
from corellm_ray.client import ReplicatedLLM
from corellm_ray.fleet import Fleet
from corellm_ray.options import ReplicaOptions

logger = logging.getLogger(__name__)

_MOST_REQUESTS = 100_000
"""Of one replica, for Ray Serve: the gate in front says how many there may be, and the engine queues them."""


@contextmanager
def replicas(options: ReplicaOptions, engine_args: Mapping[str, Any]) -> Iterator[ReplicatedLLM]:
    """Open a model as replicas, which end with the block; SIGHUP replaces them, without losing a request.

    Raises:
        ConfigError, CheckpointError, PluginError: the model cannot be served, or there is no cluster.
        EngineDeadError: no replica can be started.
    """
    config = EngineConfig.from_kwargs(**engine_args)
    located = locate(config.model)  # refuses before a cluster is started, as the next line does
    refuse_early(config, located)
    num_cpus = math.ceil(options.most * options.replica_cpus)
    with joined(options.ray_address, num_cpus=num_cpus, object_store_memory=options.object_store_memory):
        fleet = Fleet(options, engine_args, _MOST_REQUESTS)

        def wait_until_ready() -> Ready:
            fleet.deploy()
            ready = decode_from_engine(fleet.handle.sizes.remote().result())
            assert isinstance(ready, Ready)
            return ready

        try:
            with collector_paused():
                set_up_threads()
                front, sizes = open_front_end(config, located, wait_until_ready)
            with front.closing, _replacing_on_hangup(fleet):
                yield ReplicatedLLM(front, sizes, located.use, located.sampling, fleet)
        finally:
            fleet.close()


@contextmanager
def _replacing_on_hangup(fleet: Fleet) -> Iterator[None]:
    """Replace the replicas whenever this process gets SIGHUP."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def replace_all() -> None:
        logger.info("replacing the replicas of %s", fleet.name)
        try:
            fleet.deploy()
        except EngineDeadError:
            logger.exception("the replicas of %s were not replaced", fleet.name)
        else:
            logger.info("the replicas of %s are replaced", fleet.name)

    before = signal.getsignal(signal.SIGHUP)

    def on_hangup(number: int, frame: FrameType | None) -> None:
        threading.Thread(target=replace_all, daemon=True).start()
        if callable(before):  # of another model of this server
            before(number, frame)

    signal.signal(signal.SIGHUP, on_hangup)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
