"""Requests that may be what ends replicas run one after the other, and wait for none that reads slowly."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from corellm.engine.process.codec import RequestCodec
from corellm.engine.process.messages import Delta
from corellm.errors import EngineDeadError, EngineLostError, PromptError
from corellm.frontend.input_processor import ProcessedPrompt
from corellm.sampling_params import SamplingParams
from corellm_ray.client import ReplicatedLLM
from corellm_server.suspects import Suspects, print_of


class Scripted(ReplicatedLLM):
    """Replicas that yield three deltas of each request, or end with it."""

    def __init__(self) -> None:
        self._suspects, self._turn = Suspects(), asyncio.Lock()
        self._streams: Any = SimpleNamespace(deltas=self.deltas)
        self.running = self.most = 0

    async def deltas(self, request: tuple[bytes, bytes], key: bytes) -> AsyncGenerator[Delta, None]:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for number in range(3):
                await asyncio.sleep(0)
                if key == b"deadly":
                    raise EngineDeadError("it ended")
                yield Delta(str(number), [], number == 2)
        finally:
            self.running -= 1


async def read(llm: Scripted, one: bytes, key: bytes = b"") -> list[str]:
    """The deltas of a request."""
    return [delta.request_id async for delta in llm._alone(one, llm.deltas((b"", b""), key))]


def test_a_suspect_that_is_read_slowly_keeps_none_waiting() -> None:
    """The replica has ended with it long before its reader has; two never run at once."""

    async def ask() -> None:
        llm = Scripted()
        slow: Any = llm._alone(b"slow", llm.deltas((b"", b""), b""))
        assert (await anext(slow)).request_id == "0"
        others = [asyncio.ensure_future(read(llm, name)) for name in (b"a", b"b")]
        for _ in range(1000):
            await asyncio.sleep(0)
        assert [other.done() and other.result() for other in others] == [["0", "1", "2"]] * 2
        assert llm.most == 1
        assert [delta.request_id async for delta in slow] == ["1", "2"]

    asyncio.run(ask())


def test_a_suspect_whose_reader_leaves_or_whose_replica_ends_lets_the_next_one_run() -> None:
    """And one that was found out meanwhile is not run."""

    async def ask() -> None:
        llm = Scripted()
        left: Any = llm._alone(b"left", llm.deltas((b"", b""), b""))
        await anext(left)
        await left.aclose()
        with pytest.raises(EngineDeadError, match="it ended"):
            await read(llm, b"killer", b"deadly")
        assert await read(llm, b"a") == ["0", "1", "2"]
        for is_alone in (False, True):
            llm._suspects.note([b"killer"], is_alone=is_alone)
        with pytest.raises(PromptError, match="engines ended while they had this request"):
            await read(llm, b"killer")
        assert llm.running == 0

    asyncio.run(ask())


class Deadly(Scripted):
    """Replicas that end with each request, before or after its first delta."""

    def __init__(self, *, first: bool) -> None:
        super().__init__()
        self._use: Any = SimpleNamespace(
            own_params=lambda given, *_: given.clone(), ready=lambda prompt, params, *_: (prompt, params)
        )
        self._sizes: Any = SimpleNamespace(tasks=(), max_total_tokens=9)
        self._front: Any = SimpleNamespace(input_processor=None)
        self._default_params, self._codec, self._ids = SamplingParams(), RequestCodec(), itertools.count()
        self._first, self.num_ended = first, 0

    async def deltas(self, request: tuple[bytes, bytes], key: bytes) -> AsyncGenerator[Delta, None]:
        await asyncio.sleep(0)
        self.num_ended += 1
        if self._first:
            raise EngineDeadError("it ended")
        yield Delta("0", [], False)  # and its answer breaks off


@pytest.mark.parametrize("first", [False, True])
def test_what_ends_replicas_is_known_before_the_next_such_request_runs(first: bool) -> None:
    """Of two with one prompt the third end of one tells, and the other one has no third replica."""

    async def ask() -> None:
        llm, prompt, params = Deadly(first=first), ProcessedPrompt(None, [1, 2], []), SamplingParams(seed=1)
        llm._suspects.note([print_of(prompt, params)], is_alone=False)

        async def run() -> None:
            async for _ in llm.generate(prompt, params):
                pass

        found = await asyncio.gather(run(), run(), return_exceptions=True)
        assert [type(error) for error in found] == [EngineLostError, PromptError]
        assert llm.num_ended == 5

    asyncio.run(ask())
