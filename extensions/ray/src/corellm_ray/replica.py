"""A replica: an engine in a Ray actor, which Ray Serve starts, asks for its health, and replaces.

Knows the engine and how a request comes and goes; knows neither the server nor other replicas.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pkgutil import resolve_name
from typing import Any

import msgspec
from ray import serve

from corellm.engine.process.codec import RequestCodec
from corellm.engine.process.engine_main import sizes_of
from corellm.engine.process.faults import Fault, to_fault
from corellm.engine.process.messages import Delta
from corellm.engine.process.messages import encode as encoded
from corellm.errors import CorellmError, EngineDeadError
from corellm.serving import AsyncLLM
from corellm_ray.cores import bound_to_cores
from corellm_ray.outbox import Outbox
from corellm_ray.wire import from_wire

logger = logging.getLogger(__name__)


class Last(msgspec.Struct, array_like=True):
    """The end of a request."""

    delta: Delta
    """Outputs that no message of `EngineReplica.news` had; its id is the replica's."""
    num_sent: int
    """Messages of `EngineReplica.news` that have the rest."""


class Result(msgspec.Struct, array_like=True):
    """What a call of a function in a replica's engine gave."""

    value: Any
    fault: Fault | None = None
    is_elsewhere: bool = False
    """Whether the replica that was meant is not this one, and nothing was called."""


class EngineReplica:
    """One engine.

    Args:
        engine_args: of `EngineConfig.from_kwargs`.
        num_cpus: cores that its threads keep to; 0 or a fraction for any.
        hang_seconds: longest time without a finished step while there is one to do.
        log_level: of its log, which Ray keeps by replica.
    """

    def __init__(self, engine_args: Mapping[str, Any], num_cpus: float, hang_seconds: float, log_level: int) -> None:
        logging.basicConfig(level=log_level)
        self.id = serve.get_replica_context().replica_id.unique_id
        self._hang_seconds = hang_seconds
        self._cores = bound_to_cores(int(num_cpus))
        self._llm = AsyncLLM(**{**engine_args, "media_workers": 0})  # the server decodes media
        self._codec = self._llm.engine.use.codec or RequestCodec()
        self._params: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(self._codec.params_type)
        self._outboxes: dict[str, Outbox] = {}
        """Outboxes by the server that reads them."""

    async def generate(self, request: bytes, tensors: bytes, key: bytes, reader: str, number: str) -> bytes:
        """Run a request; what comes before its end is part of `news`. Returns an encoded `Last`.

        Args:
            request, tensors: of `wire.to_wire`.
            key: by which the request found this replica.
            reader: who reads the news.
            number: of the request, one of this reader's.
        """
        outbox = self._outboxes.get(reader)
        if outbox is None:
            outbox = self._outboxes[reader] = Outbox(self._codec.delta)
        outbox.begin(number)
        try:
            prompt, params = from_wire(request, tensors, self._params.decode)
            async with aclosing(self._llm.generate(prompt, params)) as outputs:
                async for output in outputs:
                    if output.finished:
                        output.request_id = self.id
                        return encoded(Last(*outbox.last(number, output)))
                    outbox.put(number, output)
            raise EngineDeadError("the engine stopped within a request")
        except CorellmError as error:
            if isinstance(error, EngineDeadError):
                raise  # as if the process had ended
            return encoded(Last(Delta(self.id, [], True, fault=to_fault(error)), outbox.num_sent(number)))
        finally:
            outbox.end(number)
            self._forget(reader, outbox)

    async def news(self, reader: str, target: str) -> AsyncGenerator[bytes, None]:
        """Yield new outputs of all requests of a reader: encoded lists of deltas, each with its request's number.

        Ends when there was no request for a while. An empty message comes first, if another replica was meant.

        Args:
            reader: who reads it.
            target: id of the replica that was meant.
        """
        if target != self.id:
            yield b""
            return
        outbox = self._outboxes.setdefault(reader, Outbox(self._codec.delta))
        try:
            async with aclosing(outbox.messages()) as messages:
                async for message in messages:
                    yield message
        finally:
            outbox.is_read = False
            self._forget(reader, outbox)

    def _forget(self, reader: str, outbox: Outbox) -> None:
        """Forget an outbox that has nothing to send, and none who reads it."""
        if outbox.is_idle and not outbox.is_read and self._outboxes.get(reader) is outbox:
            del self._outboxes[reader]

    async def sizes(self) -> bytes:
        """What the server's front end must know of the model, encoded."""
        return encoded(sizes_of(self._llm.engine))

    async def call(self, function: str, arguments: Sequence[Any], target: str) -> bytes:
        """Call a function with the engine between two steps, if this replica was meant; returns an encoded `Result`.

        Args:
            function: its name: `module:function`.
            arguments: what it is called with, after the engine.
            target: id of the replica.
        """
        if target != self.id:
            return encoded(Result(None, is_elsewhere=True))
        try:
            return encoded(Result(await self._llm.in_engine(resolve_name(function), *arguments)))
        except Exception as error:  # no call may end the engine
            logger.debug("%s failed", function, exc_info=True)
            return encoded(Result(None, to_fault(error)))

    async def check_health(self) -> None:
        """Return if the engine lives.

        Raises:
            EngineDeadError: why it does not, or that it hangs; Ray Serve replaces the replica.
        """
        await self._llm.check_health()
        if self._llm.seconds_silent > self._hang_seconds:
            raise EngineDeadError(f"the engine completed no step for {self._hang_seconds:g} s")

    async def __del__(self) -> None:
        """End the engine, after Ray Serve has drained the replica."""
        if hasattr(self, "_llm"):
            await asyncio.to_thread(self._llm.close)


class ScalingReplica(EngineReplica):
    """One of as many engines as the load asks for; Ray Serve takes its numbers from such ones only."""

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What decides how many replicas there are."""
        metrics = {metric.name: metric.value for metric in await self._llm.get_metrics()}
        return {"kv_cache_usage": metrics["corellm:kv_cache_usage_perc"]}
