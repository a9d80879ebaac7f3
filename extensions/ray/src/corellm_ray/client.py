"""The engine that a server has behind it, where it is replicas: prompts are prepared here, and run there.

Knows requests, a Ray Serve handle, and what to do when a replica ends; which replica a request goes to is the router's.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from corellm.engine.maintenance import AsyncMaintenance
from corellm.engine.process.client import name_of
from corellm.engine.process.codec import RequestCodec, metrics_of, plain_metrics
from corellm.engine.process.faults import to_error
from corellm.engine.process.front_end import FrontEnd
from corellm.engine.process.messages import Delta, Ready
from corellm.errors import EngineDeadError, EngineLostError
from corellm.loading.model_use import ModelUse
from corellm.outputs import RequestMetrics, RequestOutput
from corellm.plugin.calls import CallOfExtension
from corellm.sampling_params import SamplingParams
from corellm.serving import InputProcessor, Metric, ProcessedPrompt, total_metrics
from corellm_ray.progress import Progress
from corellm_ray.replica import Result
from corellm_ray.streams import CALL_PAUSE, ENDED, MOST_CALLS, Streams
from corellm_ray.wire import read, to_wire
from corellm_server.routing import key_of, preferences
from corellm_server.suspects import Suspects, print_of
from corellm_server.tasks import cancelled

if TYPE_CHECKING:  # of an extension, which may not be installed
    from ray.serve.handle import DeploymentHandle

    from corellm_pooling.params import PoolingParams
    from corellm_pooling.results import PoolingOutput, PoolingRequestOutput
    from corellm_ray.fleet import Fleet

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_result = msgspec.msgpack.Decoder(Result).decode

MOST_TRIES = 3
"""Replicas that a request is given to, if each ends before it has answered. Before the last one it is a suspect: it
does not meet others with which as many ended."""


class ReplicatedLLM(AsyncMaintenance):
    """A model that replicas run, for many coroutines of this process.

    Args:
        front: prepares prompts.
        sizes: of each replica's engine.
        use: of the model.
        default_params: of requests without any.
        fleet: the replicas.
    """

    def __init__(
        self, front: FrontEnd, sizes: Ready, use: ModelUse, default_params: SamplingParams, fleet: Fleet
    ) -> None:
        self._front, self._sizes, self._use, self._default_params = front, sizes, use, default_params
        self._fleet = fleet
        self._handle: DeploymentHandle[Any] = fleet.handle
        self._streams = Streams(fleet.handle)
        self._codec = use.codec or RequestCodec()
        self._ids = itertools.count()
        self._suspects, self._turn = Suspects(), asyncio.Lock()
        self.context = front.context
        self.eos_token_ids = sizes.eos_token_ids

    # --- as an `EngineClient` ---------------------------------------------------------------------------------------

    beam_search: CallOfExtension[Any] = CallOfExtension("decoding")

    @property
    def engine(self) -> ReplicatedLLM:
        """What calls of extensions ask for the model's own."""
        return self

    @property
    def dead(self) -> EngineDeadError | None:
        """Why there will be no replica any more; None while there are some, or Ray Serve starts others."""
        return self._fleet.dead

    @property
    def seconds_silent(self) -> float:
        """Seconds since a replica was there."""
        return self._fleet.seconds_empty

    @property
    def max_model_len(self) -> int:
        """Longest sequence, prompt and output together, that the model and the KV cache take."""
        return self._sizes.max_total_tokens

    @property
    def input_processor(self) -> InputProcessor:
        """Prepares prompts, in any thread, without running them."""
        return self._front.input_processor

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that requests may have."""
        return self._sizes.tasks

    @property
    def reads_pairs(self) -> bool:
        """Whether two texts are joined as the tokenizer does it."""
        return self._sizes.reads_pairs

    @property
    def labels(self) -> Mapping[int, str]:
        """Names of the model's classes by number, as its configuration states them."""
        return getattr(self.context.hf_config, "id2label", None) or {}

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters of requests without any."""
        return self._default_params.clone()

    async def get_tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.context.tokenizer

    async def check_health(self) -> None:
        """Return if there are replicas, or will be.

        Raises:
            EngineDeadError: why there will be none.
        """
        if self.dead is not None:
            raise EngineDeadError(str(self.dead))

    def encode(
        self, prompt: Any, pooling_params: PoolingParams
    ) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput], None]:
        """Pool a prompt; closing the iteration aborts the request."""
        return self._run(prompt, pooling_params)

    def generate(
        self, prompt: Any, sampling_params: SamplingParams | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete a prompt; closing the iteration aborts the request.

        Raises:
            RequestError: the request is wrong.
            RequestFailedError: it failed while it ran.
            EngineLostError: its replica ended, and no other one could go on.
        """
        return self._run(prompt, sampling_params)

    async def _run(self, prompt: Any, given: Any) -> AsyncGenerator[Any, None]:
        arrival = time.monotonic()
        params = self._use.own_params(given, self._default_params, self.tasks)
        if not isinstance(prompt, ProcessedPrompt):
            prompt = await asyncio.to_thread(self.input_processor.process, prompt)
        prompt, params = self._use.ready(prompt, params, self.max_model_len, self.input_processor)
        in_flight = self._codec.in_flight(prompt, params)
        self._suspects.check(one := print_of(prompt, params))
        if isinstance(params, SamplingParams) and params.seed is None:
            params.seed = secrets.randbits(62)  # another replica then computes the same
        request = await asyncio.to_thread(to_wire, prompt, params) if prompt.features else to_wire(prompt, params)
        progress, key, request_id = Progress(), key_of(prompt), f"replicated-{next(self._ids)}"
        for tries_left in reversed(range(MOST_TRIES)):
            progress.begin_again()
            try:
                self._suspects.check(one)  # another one of the same prompt may have ended replicas meanwhile
                run = self._noted(one, self._streams.deltas(request, key), tries_left)
                async with aclosing(self._alone(one, run) if one in self._suspects else run) as deltas:
                    async for delta in deltas:
                        news = progress.news(delta)
                        if news is None:
                            continue
                        replica, news.request_id = news.request_id, request_id
                        output = in_flight.output(news)
                        if output.error is not None:
                            raise output.error
                        if output.finished:
                            output.metrics = _of_this_clock(output.metrics, arrival, replica)
                        yield output
                        if output.finished:
                            self._suspects.clear(one)
                            return
            except ENDED as error:
                logger.warning("a replica ended with a request in flight: %s", error)
                if not tries_left:
                    raise EngineLostError("the replicas that had the request ended; send it again") from error

    async def _noted(
        self, one: bytes, run: AsyncGenerator[Delta, None], tries_left: int
    ) -> AsyncGenerator[Delta, None]:
        """What a replica yields of a request; that it ends with it is noted before who reads this learns of it.

        Raises:
            RayActorError, EngineDeadError: it ended.
        """
        is_whole = False
        try:
            async with aclosing(run):
                async for delta in run:
                    is_whole = delta.finished
                    yield delta
            if not is_whole:
                raise EngineDeadError("a replica's answer broke off")
        except ENDED:
            if tries_left <= 1:
                self._suspects.note([one], is_alone=not tries_left)
            raise

    async def _alone(self, one: bytes, run: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
        """What a replica yields of a request that may be what ends replicas, when no other such one runs.

        The next one waits for the replica, and not for who reads this.

        Raises:
            PromptError: it ends replicas, as another one of the same prompt has shown meanwhile.
        """
        found: asyncio.Queue[Delta | None] = asyncio.Queue()

        async def read_all() -> None:
            try:
                async with self._turn, aclosing(run):
                    self._suspects.check(one)
                    async for delta in run:
                        found.put_nowait(delta)
            finally:
                found.put_nowait(None)

        task = asyncio.ensure_future(read_all())
        try:
            while (delta := await found.get()) is not None:
                yield delta
            await task
        finally:
            await cancelled([task])

    # --- maintenance ------------------------------------------------------------------------------------------------

    async def in_engine(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call a function with the engine of each replica, and return the first one's result.

        Raises:
            CorellmError: it failed in one of them.
            EngineDeadError: there is no replica.
        """
        results = await self._in_engines(function, *arguments)
        if not results:
            raise _none()
        return next(iter(results.values()))

    async def in_engine_of(self, prompt: ProcessedPrompt, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call a function with the engine of the one replica that should have this prompt's requests, or the next one.

        Raises:
            CorellmError: it failed there.
            EngineDeadError: there is no replica.
        """
        for replica in preferences(key_of(prompt), self._fleet.replica_ids):
            result = await self._call(replica, name_of(function), arguments)
            if result is not None:
                return cast(_Result, result.value)
        raise _none()

    async def _in_engines(self, function: Callable[..., _Result], *arguments: Any) -> dict[str, _Result]:
        """Call a function with the engine of each replica; results by the replica's id, but of those that ended."""
        name, ids = name_of(function), self._fleet.replica_ids
        calls = (self._call(replica, name, arguments) for replica in ids)
        results = dict(zip(ids, await asyncio.gather(*calls), strict=True))
        return {replica: result.value for replica, result in results.items() if result is not None}

    async def _call(self, replica: str, name: str, arguments: Sequence[Any]) -> Result | None:
        """What a call gave in a replica; None if the replica ended."""
        for _ in range(MOST_CALLS):
            try:
                result = read(_result, await self._handle.call.remote(name, arguments, target=replica))
            except ENDED:
                pass  # it ended, or another one did that had the call in its place
            else:
                if result.fault is not None:
                    raise to_error(result.fault)
                if not result.is_elsewhere:
                    return result
            if replica not in self._fleet.replica_ids:
                return None
            await asyncio.sleep(CALL_PAUSE)
        raise EngineLostError("a replica cannot be reached; try again")

    async def get_metrics(self) -> list[Metric]:
        """The metrics of all replicas together."""
        return total_metrics((await self.get_metrics_by_replica()).values())

    async def get_metrics_by_replica(self) -> dict[str, Sequence[Metric]]:
        """The metrics of each replica, by its id."""
        return {name: metrics_of(plain) for name, plain in (await self._in_engines(plain_metrics)).items()}


def _none() -> EngineDeadError:
    return EngineDeadError("there is no replica now; Ray Serve starts others")


def _of_this_clock(metrics: RequestMetrics | None, arrival: float, replica: str) -> RequestMetrics | None:
    """A replica's times as times of this machine: its last one is now."""
    if metrics is None:
        return None
    stamps = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts", "finished_time")
    known = {name: stamp for name in stamps if (stamp := getattr(metrics, name)) is not None}
    shift = time.monotonic() - max(known.values())
    moved = {name: stamp + shift for name, stamp in known.items()}
    return replace(metrics, arrival_time=arrival, replica=replica, **moved)
