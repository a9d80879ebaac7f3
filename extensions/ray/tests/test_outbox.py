"""What a replica sends of several requests: each message has what is new of all, and nothing is lost, twice or late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec
import pytest

from corellm.engine.process.codec import RequestCodec
from corellm.engine.process.messages import Delta
from corellm.outputs import CompletionOutput, RequestOutput
from corellm_ray import outbox as module
from corellm_ray.outbox import Outbox

_deltas = msgspec.msgpack.Decoder(list[Delta]).decode


def output(*token_ids: int, finished: bool = False) -> RequestOutput:
    """What an engine yields of a request."""
    return RequestOutput("", None, [1], [CompletionOutput(index=0, token_ids=list(token_ids))], finished)


def tokens(delta: Delta) -> list[int]:
    """The tokens of a request's only completion."""
    return list(delta.outputs[0].token_ids)


async def message(messages: AsyncGenerator[bytes, None]) -> dict[str, list[int]]:
    """The tokens of the next message, by request."""
    return {delta.request_id: tokens(delta) for delta in _deltas(await anext(messages))}


def test_outputs_of_all_requests_share_messages() -> None:
    """Those of one request are joined; the end has what no message has, and says how many there were."""

    async def run() -> None:
        outbox = Outbox(RequestCodec().delta)
        for number in "ab":
            outbox.begin(number)
        outbox.put("a", output(1))
        outbox.put("a", output(2))
        outbox.put("b", output(3))
        messages = outbox.messages()
        assert await message(messages) == {"a": [1, 2], "b": [3]}
        outbox.put("a", output(4))
        outbox.put("b", output(5))
        last, num_sent = outbox.last("a", output(6, finished=True))
        outbox.end("a")
        assert (tokens(last), num_sent) == ([4, 6], 1)
        assert await message(messages) == {"b": [5]}
        outbox.put("b", output(7))
        assert tokens(outbox.last("b", output(8, finished=True))[0]) == [7, 8]
        assert outbox.num_sent("b") == 2
        await messages.aclose()

    asyncio.run(run())


def test_messages_end_when_there_is_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the last news went with the end of its request; others run meanwhile."""
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.001)
    monkeypatch.setattr(module, "JOIN_SECONDS", 0.001)

    async def run() -> None:
        outbox = Outbox(RequestCodec().delta)
        outbox.begin("a")
        reading = asyncio.ensure_future(anext(outbox.messages(), b"none"))
        for _ in range(10):
            outbox.put("a", output(1))
            outbox.last("a", output(2, finished=True))
            await asyncio.sleep(0)  # returns only if the messages leave others a turn
        assert not reading.done()
        outbox.end("a")
        assert await reading == b"none"
        assert outbox.is_idle

    asyncio.run(run())
