"""Requests that replicas have: parts of their outputs come by one stream, their ends by calls, in whichever order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from corellm.engine.process.messages import Delta, encode
from corellm.errors import EngineDeadError, EngineLostError
from corellm_ray import streams as module
from corellm_ray.replica import Last
from corellm_ray.roster import placed
from corellm_ray.streams import Streams


class Replica:
    """A replica by its handle: the test says when it sends what."""

    def __init__(self) -> None:
        self.calls: dict[str, asyncio.Future[bytes]] = {}
        """Of requests, by number."""
        self.news: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue()
        self.num_read, self.num_cancelled = 0, 0
        self.reader, self.readers = "", list[str]()
        self.generate = SimpleNamespace(remote=self._generate)

    def options(self, *, stream: bool) -> Any:
        """The handle of what streams."""
        assert stream
        return SimpleNamespace(news=SimpleNamespace(remote=self._news))

    def place(self, number: str) -> None:
        """Say that it got a request."""
        placed(self.reader, number, "r")

    def send(self, *parts: tuple[str, str]) -> None:
        """Send a message with a part of each request."""
        self.news.put_nowait(encode([Delta(number, [], False, int(part))
                                     for number, part in parts]))  # fmt: skip

    def end(self, number: str, part: str, num_sent: int) -> None:
        """Return the end of a request."""
        self.calls[number].set_result(encode(Last(Delta("r", [], True, int(part)), num_sent)))

    def _generate(self, request: bytes, tensors: bytes, *, key: bytes, reader: str, number: str) -> Any:
        self.reader = reader
        self.calls[number] = asyncio.get_running_loop().create_future()
        return self.calls[number]

    def _news(self, reader: str, *, target: str) -> Any:
        assert (reader, target) == (self.reader, "r")
        self.readers.append(reader)
        self.num_read += 1
        return self._Response(self)

    class _Response:
        def __init__(self, replica: Replica) -> None:
            self._replica = replica

        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> bytes:
            found = await self._replica.news.get()
            if found is None:
                raise StopAsyncIteration
            if isinstance(found, BaseException):
                raise found
            return found

        def cancel(self) -> None:
            self._replica.num_cancelled += 1


async def turns() -> None:
    """Let all others go on as far as they can."""
    for _ in range(50):
        await asyncio.sleep(0)


async def parts(found: AsyncGenerator[Delta, None]) -> list[int]:
    """What a reader gets."""
    return [delta.num_cached_tokens async for delta in found]


def run(script: Callable[[Replica, Streams], Any]) -> None:
    """Run a test with a replica."""

    async def within_loop() -> None:
        replica: Any = Replica()
        await script(replica, Streams(replica))

    asyncio.run(within_loop())


def started(streams: Streams, count: int) -> list[asyncio.Task[list[int]]]:
    """Requests that are read."""
    return [asyncio.create_task(parts(streams.deltas((b"", b""), b"k"))) for _ in range(count)]


@pytest.mark.parametrize("is_end_first", [False, True])
def test_a_reader_gets_all_parts_and_then_the_end(is_end_first: bool) -> None:
    """Of two requests by one stream, in whichever order the calls and the stream bring them."""

    async def script(replica: Replica, streams: Streams) -> None:
        reading = started(streams, 2)
        await turns()
        if is_end_first:
            replica.end("0", "3", num_sent=2)
        for number in "01":
            replica.place(number)
        replica.send(("0", "1"), ("1", "7"))
        replica.send(("0", "2"))
        await turns()
        if not is_end_first:
            replica.end("0", "3", num_sent=2)
        replica.end("1", "8", num_sent=1)
        assert await asyncio.gather(*reading) == [[1, 2, 3], [7, 8]]
        assert replica.num_read == 1

    run(script)


def test_requests_fail_where_the_stream_breaks_off_or_cannot_be_read() -> None:
    """As if the replica had ended: they go on on another one. Their calls are cancelled, and later ones are read."""

    async def script(replica: Replica, streams: Streams) -> None:
        for turn, broken in enumerate((EngineDeadError("it ended"), b"\x91", asyncio.CancelledError())):
            reading = started(streams, 2)
            await turns()
            numbers = [str(2 * turn), str(2 * turn + 1)]
            for number in numbers:
                replica.place(number)
            await turns()
            replica.news.put_nowait(broken)
            found = await asyncio.gather(*reading, return_exceptions=True)
            assert [type(error) for error in found] == [EngineDeadError] * 2
            assert all(replica.calls[number].cancelled() for number in numbers)
            assert replica.num_read == turn + 1
        assert len(set(replica.readers)) == 3  # the replica may go on with a stream that broke off

    run(script)


def test_a_request_fails_that_comes_to_a_stream_that_broke_off() -> None:
    """Its replica may still send what is new by that stream, which nobody reads; the next one has another stream."""

    async def script(replica: Replica, streams: Streams) -> None:
        first, late = started(streams, 2)
        await turns()
        replica.place("0")
        await turns()
        replica.news.put_nowait(EngineDeadError("it ended"))
        await turns()
        replica.place("1")
        for reading in (first, late):
            with pytest.raises(EngineDeadError, match="broke off"):
                await reading
        (again,) = started(streams, 1)
        await turns()
        replica.place("2")
        replica.send(("2", "1"))
        replica.end("2", "2", num_sent=1)
        assert await again == [1, 2]

    run(script)


def test_a_request_fails_whose_call_is_cancelled_by_the_replica() -> None:
    """As if the replica had ended; its reader waits no longer."""

    async def script(replica: Replica, streams: Streams) -> None:
        (reading,) = started(streams, 1)
        await turns()
        replica.calls["0"].cancel()
        with pytest.raises(EngineDeadError, match="was cancelled in its replica"):
            await reading

    run(script)


def test_an_end_that_is_damaged_fails_its_request_alone() -> None:
    """With an error that asks for another try."""

    async def script(replica: Replica, streams: Streams) -> None:
        damaged, whole = started(streams, 2)
        await turns()
        replica.calls["0"].set_result(encode(Last(Delta("r", [], True), 0))[:-1])
        replica.end("1", "8", num_sent=0)
        with pytest.raises(EngineLostError, match="cannot be read; send the request again"):
            await damaged
        assert await whole == [8]

    run(script)


def test_a_reader_that_leaves_ends_its_request_alone() -> None:
    """Its call is cancelled; what still comes of it is left out."""

    async def script(replica: Replica, streams: Streams) -> None:
        left, stays = started(streams, 2)
        await turns()
        for number in "01":
            replica.place(number)
        replica.send(("0", "1"), ("1", "7"))
        await turns()
        left.cancel()
        await turns()
        assert replica.calls["0"].cancelled()
        replica.send(("0", "2"))
        replica.end("1", "8", num_sent=1)
        assert await stays == [7, 8]
        replica.place("0")  # told late

    run(script)


def test_the_stream_is_opened_again_for_requests_that_come_as_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where another replica was asked; without requests it ends."""
    monkeypatch.setattr(module, "CALL_PAUSE", 0.0)

    async def script(replica: Replica, streams: Streams) -> None:
        (reading,) = started(streams, 1)
        await turns()
        replica.place("0")
        await turns()
        for part in (b"", None):  # it was another one
            replica.news.put_nowait(part)
        replica.news.put_nowait(None)  # it ends, as it had no request yet
        replica.send(("0", "1"))
        replica.end("0", "2", num_sent=1)
        assert await reading == [1, 2]
        assert replica.num_read == 3
        replica.news.put_nowait(None)
        await turns()
        assert not streams._reading

    run(script)
