"""Requests that replicas have: each is a call of Ray Serve, and one stream from each replica has what is new of all.

Knows a Ray Serve handle and deltas; what becomes of a request whose replica ended is the client's to know.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from grpc.aio import AioRpcError
from ray.exceptions import RayActorError

from corellm.engine.process.messages import Delta
from corellm.errors import EngineDeadError
from corellm_ray.replica import Last
from corellm_ray.roster import listen
from corellm_ray.wire import read
from corellm_server.tasks import cancelled

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

ENDED = (RayActorError, EngineDeadError, AioRpcError)
"""Errors that a call raises when its replica has ended."""
MOST_CALLS = 100
"""Times that a call for one replica is sent: another may get it while replicas are asked how much they have to do."""
CALL_PAUSE = 0.05
"""Seconds between them."""
_deltas = msgspec.msgpack.Decoder(list[Delta]).decode
_last = msgspec.msgpack.Decoder(Last).decode


class _Running:
    """A request, and what came of it that its reader has not taken yet."""

    def __init__(self, reader: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.reader, self.replica = reader, ""
        """Name of the stream with its outputs, and id of the replica that has it, once that is known."""
        self._found: asyncio.Queue[Delta | Exception] = asyncio.Queue()
        self._num_parts, self._last = 0, Last(Delta("", [], False), -1)

    def put(self, delta: Delta) -> None:
        """Take a part of the outputs."""
        self._num_parts += 1
        self._found.put_nowait(delta)
        self._end()

    def finish(self, last: Last) -> None:
        """Take the end, which the reader gets after all parts."""
        self._last = last
        self._end()

    def fail(self, error: Exception) -> None:
        """Have the reader get an error."""
        self._found.put_nowait(error)

    async def next(self) -> Delta:
        """Return the next part.

        Raises:
            Exception: what `fail` was given.
        """
        found = await self._found.get()
        if isinstance(found, Exception):
            raise found
        return found

    def _end(self) -> None:
        if self._num_parts == self._last.num_sent:
            self._found.put_nowait(self._last.delta)


class Streams:
    """The requests of one model that replicas have.

    Args:
        handle: of the replicas.
    """

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle, self._stream = handle, handle.options(stream=True)
        self._name, self._numbers = uuid.uuid4().hex, itertools.count()
        self._broken: set[tuple[str, str]] = set()
        """Streams that broke off. Replicas may go on with them for a while, so later ones have another name."""
        self._requests: dict[str, _Running] = {}
        """Requests by number."""
        self._reading: dict[tuple[str, str], asyncio.Task[None]] = {}
        """Tasks by the stream's name and the replica."""
        listen(self._name, self._placed)

    async def deltas(self, request: tuple[bytes, bytes], key: bytes) -> AsyncGenerator[Delta, None]:
        """Yield the deltas of a request, the finished one last; closing the iteration aborts the request.

        Args:
            request: of `wire.to_wire`.
            key: by which it finds its replica.

        Raises:
            RayActorError, EngineDeadError, AioRpcError: the replica ended, or what it sent is lost.
            EngineLostError: what it sent cannot be read.
        """
        number, running = str(next(self._numbers)), _Running(f"{self._name}.{len(self._broken)}")
        self._requests[number] = running
        call = asyncio.ensure_future(self._run(running, request, key=key, number=number))
        try:
            is_whole = False
            while not is_whole:
                delta = await running.next()
                is_whole = delta.finished
                yield delta
        finally:
            del self._requests[number]
            await cancelled([call])

    async def _run(self, running: _Running, request: tuple[bytes, bytes], **names: Any) -> None:
        try:
            data = await self._handle.generate.remote(*request, reader=running.reader, **names)
            running.finish(read(_last, data))
        except asyncio.CancelledError:  # also what a replica may raise that ends
            running.fail(EngineDeadError("the request was cancelled in its replica"))
            raise
        except Exception as error:
            running.fail(error)

    def _placed(self, number: str, replica: str) -> None:
        """Read what is new from a replica that got a request; in any thread."""
        if (running := self._requests.get(number)) is not None:
            with suppress(RuntimeError):  # its loop was closed meanwhile
                running.loop.call_soon_threadsafe(self._read_from, running, replica)

    def _read_from(self, running: _Running, replica: str) -> None:
        running.replica = replica
        place = running.reader, replica
        if place in self._broken:
            running.fail(EngineDeadError("the stream of the request's outputs broke off before it began"))
        elif place not in self._reading:
            self._reading[place] = running.loop.create_task(self._read(*place))

    async def _read(self, reader: str, replica: str) -> None:
        """Read what is new of all requests of a replica, until it has none; they fail if it cannot be read."""
        try:
            for _ in range(MOST_CALLS):
                await self._read_once(reader, replica)
                if not self._of(reader, replica):
                    return
                await asyncio.sleep(CALL_PAUSE)
            raise EngineDeadError("a replica cannot be reached")
        except (Exception, asyncio.CancelledError) as error:  # whatever it was, what they would have got is lost
            self._broken.add((reader, replica))
            for running in self._of(reader, replica):
                running.fail(EngineDeadError(f"a replica's answer broke off: {error}"))
        finally:
            del self._reading[reader, replica]

    async def _read_once(self, reader: str, replica: str) -> None:
        """Read until the replica has no request, or nothing if another one was asked."""
        response = self._stream.news.remote(reader, target=replica)
        is_complete = False
        try:
            async for data in response:
                for delta in read(_deltas, data) if data else ():  # there is none in the only message of another one
                    if (running := self._requests.get(delta.request_id)) is not None:
                        running.put(delta)
            is_complete = True
        finally:
            if not is_complete:
                response.cancel()

    def _of(self, *place: str) -> list[_Running]:
        return [running for running in self._requests.values() if (running.reader, running.replica) == place]
