"""The replicas of one model: started, watched and replaced by Ray Serve.

Knows Ray Serve's applications; knows no requests.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, HTTPOptions, RequestRouterConfig
from ray.serve.exceptions import RayServeException
from ray.serve.schema import LoggingConfig

from corellm.errors import EngineDeadError
from corellm_ray.cluster import REPLICA_SETTINGS
from corellm_ray.options import ReplicaOptions
from corellm_ray.replica import EngineReplica, ScalingReplica
from corellm_ray.roster import running
from corellm_ray.routing import ROUTERS

logger = logging.getLogger(__name__)

_HEALTH_SECONDS = 1.0
"""Between two looks of Ray Serve at a replica."""
_LOOK_BACK_SECONDS = 10.0
"""Time over which the load is averaged that says how many replicas there are."""


class Fleet:
    """The replicas.

    Args:
        options: how many, of which resources.
        engine_args: of `EngineConfig.from_kwargs`, for each.
        max_requests: most requests of one replica at once.
    """

    def __init__(self, options: ReplicaOptions, engine_args: Mapping[str, Any], max_requests: int) -> None:
        self.name = options.replica_app or "corellm"
        self._options, self._engine_args, self._max_requests = options, engine_args, max_requests
        self.dead: EngineDeadError | None = None
        self._last_seen = time.monotonic()
        self._deploying = threading.Lock()
        serve.start(http_options=HTTPOptions(location="NoServer"))

    def deploy(self) -> None:
        """Start the replicas, or replace those that run, one after the other, each once its successor is there.

        Raises:
            EngineDeadError: they cannot be started.
        """
        options = self._options
        is_fixed = options.fewest == options.most
        deployment = serve.deployment(
            EngineReplica if is_fixed else ScalingReplica, name="engine", max_ongoing_requests=self._max_requests,
            ray_actor_options={
                "num_cpus": options.replica_cpus, "num_gpus": options.replica_gpus,
                "runtime_env": {"env_vars": REPLICA_SETTINGS},
            },
            logging_config=LoggingConfig(enable_access_log=False),
            health_check_period_s=_HEALTH_SECONDS, health_check_timeout_s=30.0,
            graceful_shutdown_wait_loop_s=0.1, graceful_shutdown_timeout_s=options.replica_drain_timeout,
            request_router_config=RequestRouterConfig(request_router_class=ROUTERS[options.replica_router]),
            **self._number(),
        )  # fmt: skip
        level = logging.getLogger().getEffectiveLevel()
        app = deployment.bind(dict(self._engine_args), options.replica_cpus, options.replica_hang_timeout, level)
        with self._deploying:
            try:
                self.handle = serve.run(app, name=self.name, route_prefix=None)
            except (RuntimeError, RayServeException) as error:
                raise EngineDeadError(f"the replicas cannot be started: {error}") from error

    def _number(self) -> dict[str, Any]:
        options = self._options
        if options.fewest == options.most:
            return {"num_replicas": options.most}
        return {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=options.fewest, max_replicas=options.most, target_ongoing_requests=options.replica_queue,
                metrics_interval_s=1.0, look_back_period_s=_LOOK_BACK_SECONDS,
                upscale_delay_s=0.0, downscale_delay_s=0.0,  # the policy has a delay of its own
                policy=AutoscalingPolicy(policy_function="corellm_ray.scaling:replicas_for"),
            )
        }  # fmt: skip

    @property
    def replica_ids(self) -> tuple[str, ...]:
        """The replicas that take requests now."""
        return running(self.name)

    @property
    def seconds_empty(self) -> float:
        """Seconds since there was a replica."""
        if self.replica_ids:
            self._last_seen = time.monotonic()
        return time.monotonic() - self._last_seen

    def close(self) -> None:
        """End the replicas."""
        self.dead = EngineDeadError("the server was shut down")
        serve.delete(self.name)
