"""How many replicas the load asks for: by requests in flight, and by how full the KV caches are.

Runs in Ray Serve's controller. Knows numbers; knows no engine.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

FULL = 0.9
"""Share of a KV cache's blocks that requests hold, on the mean of replicas, that asks for one more."""
EMPTY = 0.5
"""Share that the others would have at most, where one goes."""


FEWER_SECONDS = 60.0
"""How long a load must ask for fewer replicas until there are fewer."""


def replicas_for(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """The number of replicas to have, and what to remember: since when fewer would do."""
    usage = (context.aggregated_metrics or {}).get("kv_cache_usage", {}).values()
    target = context.config.get_target_ongoing_requests()
    current = context.current_num_replicas
    num_requests = max(0.0, context.total_num_requests - current)  # one of each is the stream of what is new
    wanted = wanted_replicas(current, num_requests, target, list(usage))
    wanted = min(max(wanted, context.capacity_adjusted_min_replicas), context.capacity_adjusted_max_replicas)
    if wanted >= context.target_num_replicas:
        return wanted, {}
    since = context.policy_state.get("fewer_since", context.current_time)
    if context.current_time - since < FEWER_SECONDS:
        return context.target_num_replicas, {"fewer_since": since}
    return wanted, {}


def wanted_replicas(current: int, num_requests: float, target: float, usages: list[float]) -> int:
    """The number of replicas that a load asks for, without bounds.

    Args:
        current: replicas.
        num_requests: in flight, of all.
        target: of one replica.
        usages: share of each one's KV blocks that requests hold, of those that told it.
    """
    by_queue = math.ceil(num_requests / target)
    held = sum(usages)
    if usages and held / len(usages) >= FULL:
        return max(by_queue, current + 1)
    if by_queue < current and held / max(1, current - 1) > EMPTY:
        return current
    return max(1, by_queue)
