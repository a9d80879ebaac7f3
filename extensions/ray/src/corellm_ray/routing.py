"""Request routers for Ray Serve: how a request of this process finds a replica.

Ray Serve makes a router in the process of the handle and tells it which replicas run. Knows Ray Serve's routers; which
replica a key's requests should have is `corellm_server.routing`'s.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from ray.serve.request_router import (
    FIFOMixin,
    PendingRequest,
    ReplicaID,
    RequestRouter,
    RunningReplica,
)

from corellm_ray.roster import note, placed
from corellm_server.routing import choose

Choices = list[list[RunningReplica]]
"""Replicas to try, in turns; of each turn the one with the least to do."""


class Router(FIFOMixin, RequestRouter):  # type: ignore[misc]  # Ray's types are not read
    """What all routers have: they note which replicas there are, and calls that are for one replica go to it.

    First in, first out: a replica that was found is given to the request that waits longest, as by Ray Serve's default
    router. That is the request that it was found for, unless a replica had to be asked how much it has to do. By the
    request's id alone, Ray Serve loses a request whose task ends early, and then searches for none without a pause.
    """

    queue_len_response_deadline_s = 1.0
    max_queue_len_response_deadline_s = 10.0
    """Seconds that a new replica has to say how much it has to do, at first and in the end: more than by default, as on
    a busy machine it would be asked again and again."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take these replicas from now on."""
        super().update_replicas(replicas)
        self._note()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Take a replica no more."""
        super().on_replica_actor_died(replica_id)
        self._note()

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> RunningReplica:
        """Tell who reads a request's outputs where it goes: `on_request_routed` comes with the end of a unary call."""
        replica = await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        if (number := pending_request.kwargs.get("number")) is not None:
            placed(pending_request.kwargs["reader"], number, replica.replica_id.unique_id)
        return replica

    # what a replica has to do is what was sent and has not ended: Ray Serve's own count, of an unary call by gRPC, is
    # corrected at the call's end by what the replica had at its beginning, and keeps calls that were cancelled

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Count a call no more, whatever it ended with."""
        super().on_request_completed(replica_id, internal_request_id)
        super().decrement_queue_len_cache(replica_id)

    def decrement_queue_len_cache(self, replica_id: ReplicaID) -> None:
        """Leave the count: `on_request_completed` has it."""

    def on_new_queue_len_info(self, replica_id: ReplicaID, queue_len_info: object) -> None:
        """Leave the count: no replica refuses a request, and this may be old."""

    def _note(self) -> None:
        note(self.app_name, (replica.unique_id for replica in self.curr_replicas))

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> Choices:
        """Return where a request may go; a call for a replica that is gone goes to any, which refuses it."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True  # else Ray Serve tries again without a pause
        target = pending_request.kwargs.get("target")
        if target is not None:
            meant = [replica for replica in candidate_replicas if replica.replica_id.unique_id == target]
            return [meant or candidate_replicas]
        return await self.choose(candidate_replicas, pending_request)

    async def choose(self, replicas: list[RunningReplica], request: PendingRequest) -> Choices:
        """Return where a request may go."""
        raise NotImplementedError


class PrefixRouter(Router):
    """Requests with the same system prompt and first item go to the same replica, within a bound of its load."""

    async def choose(self, replicas: list[RunningReplica], request: PendingRequest) -> Choices:
        """Return the replica of the request's key, and then all, for when it does not answer."""
        by_id = {replica.replica_id.unique_id: replica for replica in replicas}
        loads = {name: self.replica_queue_len_cache.get(one.replica_id) or 0 for name, one in by_id.items()}
        return [[by_id[choose(request.kwargs.get("key", b""), loads)]], replicas]


class RoundRobinRouter(Router):
    """Each replica in turn."""

    def initialize_state(self, **_: object) -> None:
        """Begin with any."""
        self._turns: Iterator[int] = itertools.count()

    async def choose(self, replicas: list[RunningReplica], request: PendingRequest) -> Choices:
        """Return all replicas, the next one first."""
        ordered = sorted(replicas, key=lambda replica: replica.replica_id.unique_id)
        first = next(self._turns) % len(ordered)
        return [[replica] for replica in ordered[first:] + ordered[:first]]


class LoadRouter(Router):
    """The less busy of two replicas that are drawn, as Ray Serve's own default."""

    async def choose(self, replicas: list[RunningReplica], request: PendingRequest) -> Choices:
        """Return two."""
        return [random.sample(replicas, min(2, len(replicas)))]


ROUTERS = {"prefix": PrefixRouter, "load": LoadRouter, "round-robin": RoundRobinRouter}
"""By their names as options."""
