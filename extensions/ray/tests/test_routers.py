"""Routers give each request a replica: all of them at once, while replicas do not yet say how much they have to do."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from ray.serve._private.common import (
    DeploymentHandleSource,
    DeploymentID,
    ReplicaID,
    ReplicaQueueLengthInfo,
    RequestMetadata,
)
from ray.serve.request_router import PendingRequest

from corellm_ray.roster import listen, running
from corellm_ray.routing import ROUTERS, Router
from corellm_server.routing import preferences

APP = DeploymentID("engine", "test_routers")
_NUMBERS = itertools.count()


MOST_LOOKS = 10_000
"""Times that a router may look at a replica: one that searches without a pause ends there, and the test with it."""


class FakeReplica:
    """A replica as routers see it, which says how much it has to do when it is let."""

    def __init__(self, name: str) -> None:
        self.replica_id, self.is_let, self._looks = ReplicaID(name, APP), asyncio.Event(), 0

    @property
    def max_ongoing_requests(self) -> int:
        """Requests that it takes at once."""
        self._looks += 1
        assert self._looks < MOST_LOOKS, "a router looks at a replica again and again"
        return 100

    async def get_queue_len(self, *, deadline_s: float) -> int:
        """What it has to do."""
        await self.is_let.wait()
        return 0


def key_for(name: str) -> bytes:
    """A key whose requests should go to a replica of `a` and `b`."""
    keys = (str(number).encode() for number in itertools.count())
    return next(key for key in keys if preferences(key, ["a", "b"])[0] == name)


def routed(router: Router, **kwargs: Any) -> asyncio.Task[Any]:
    """The replica that a request will have."""
    name = str(next(_NUMBERS))
    request = PendingRequest([], kwargs, RequestMetadata(name, name))
    return asyncio.create_task(router._choose_replica_for_request(request))


async def all_of(tasks: list[asyncio.Task[Any]]) -> str:
    """The names of the replicas that requests have after a while in turns, not in seconds."""
    for _ in range(1000):
        await asyncio.sleep(0)
    assert all(task.done() for task in tasks), "a request has no replica"
    return "".join(task.result().replica_id.unique_id for task in tasks)


def made(kind: str) -> Router:
    """A router as Ray Serve makes it in the process of a handle."""
    router = ROUTERS[kind](APP, DeploymentHandleSource.REPLICA, use_replica_queue_len_cache=True)
    router.initialize_state()
    return router


@pytest.mark.parametrize("kind", ROUTERS)
def test_no_first_request_is_lost_while_a_replica_is_silent(kind: str) -> None:
    """Ten at once, for both replicas in turns; and ten more when the silent one has answered."""

    async def ask() -> None:
        router, replicas = made(kind), [FakeReplica("a"), FakeReplica("b")]
        router.update_replicas(replicas)  # type: ignore[arg-type]  # what routers use of them
        replicas[0].is_let.set()
        keys = [key_for("ba"[number % 2]) for number in range(10)]
        first = [routed(router, key=key) for key in keys]
        for _ in range(50):
            await asyncio.sleep(0)
        replicas[1].is_let.set()
        await all_of(first)
        assert len(await all_of([routed(router, key=key) for key in keys])) == 10

    asyncio.run(ask())


def test_requests_go_by_key_and_calls_to_the_replica_they_are_for() -> None:
    """Once replicas have said what they have to do; a call for none that is there goes to any."""

    async def ask() -> None:
        router, replicas = made("prefix"), [FakeReplica("a"), FakeReplica("b")]
        for replica in replicas:
            replica.is_let.set()
        router.update_replicas(replicas)  # type: ignore[arg-type]
        assert running(APP.app_name) == ("a", "b")
        await all_of([routed(router, target=name) for name in "ab"])
        order = "abbabaaab"
        for calls in ([{"key": key_for(name)} for name in order], [{"target": name} for name in order]):
            assert await all_of([routed(router, **call) for call in calls]) == order
        assert await all_of([routed(router, target="gone")]) in "ab"
        router.on_replica_actor_died(replicas[0].replica_id)
        assert running(APP.app_name) == ("b",)
        assert await all_of([routed(router, key=key_for("a"))]) == "b"

    asyncio.run(ask())


def test_who_reads_a_request_is_told_of_its_replica_before_it_is_sent() -> None:
    """Ray Serve calls `on_request_routed` when a unary call has ended."""

    async def ask() -> None:
        router, replica = made("prefix"), FakeReplica("a")
        replica.is_let.set()
        router.update_replicas([replica])  # type: ignore[list-item]
        told: list[tuple[str, str]] = []
        listen("test", lambda *place: told.append(place))
        await all_of(
            [routed(router, key=b"k", reader="test.0", number="7"), routed(router, target="a", reader="test.0")]
        )
        assert told == [("7", "a")]

    asyncio.run(ask())


def test_a_replicas_load_is_what_was_sent_to_it_and_has_not_ended() -> None:
    """Whatever Ray Serve makes of the ends of calls: of those that were cancelled, and with counts that are old."""
    router, name = made("load"), ReplicaID("a", APP)
    for _ in range(3):
        router.on_send_request(name)
    router.on_request_completed(name, "a call that was cancelled")
    router.on_new_queue_len_info(name, ReplicaQueueLengthInfo(accepted=True, num_ongoing_requests=9))
    router.decrement_queue_len_cache(name)
    router.on_request_completed(name, "the call that this was of")
    assert router.replica_queue_len_cache.get(name) == 1
