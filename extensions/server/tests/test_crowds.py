"""Many clients at once: such that leave at random moments, and more than the server takes."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.soak.connection import Manner, send
from extensions.server.tests.command import CHAT, Command, command
from extensions.server.tests.conftest import chat, data_url, image_part, user
from extensions.server.tests.footprint import Footprint, assert_no_leak

MAX_QUEUE = 64


@pytest.fixture(scope="module")
def served(tiny_llava: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """A server that has been in use."""
    folder = tmp_path_factory.mktemp("crowds")
    with command(tiny_llava, folder, max_queue=MAX_QUEUE, max_num_seqs=16, log_level="warning") as running:
        asyncio.run(leaving(running, 20, random.Random(1)))
        running.text_of({"image": data_url(7)}, "what?")
        yield running


async def leaving(running: Command, count: int, rng: random.Random) -> None:
    """Have clients leave: while they send, before a response, or in it; some stream."""
    room = asyncio.Semaphore(MAX_QUEUE // 2)
    manners = [
        lambda: Manner(sends=0.0, leaves_after=rng.random() * 0.1),
        lambda: Manner(sends=rng.random(), leaves_after=rng.random() * 0.1),
        lambda: Manner(leaves_after=0.0),
        lambda: Manner(leaves_after=rng.random()),
        lambda: Manner(reads=rng.randint(1, 500)),
    ]

    async def leave(index: int) -> None:
        content = [image_part(index % 9)] if index % 3 == 0 else []
        body = {**chat(user(*content, "go on"), max_tokens=300, ignore_eos=True), "stream": index % 2 == 0}
        async with room:
            outcome, said = await send(address(running), CHAT, json.dumps(body).encode(), manners[index % 5]())
        assert outcome in ("aborted", "completed"), said  # or the response was short

    await asyncio.gather(*map(leave, range(count)))


def address(running: Command) -> tuple[str, int]:
    """Where it listens."""
    return running.http.base_url.host, running.http.base_url.port or 80


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.full)])
def test_row_27_clients_that_leave(served: Command, count: int) -> None:
    """Their requests are aborted and leave nothing: blocks, items, descriptors, shared memory, threads."""
    text, before = served.text_of("hello"), Footprint.of(served.process.pid, served.http)
    asyncio.run(leaving(served, count, random.Random(count)))
    assert_no_leak(served.process.pid, served.http, before, memory=count == 1000)
    assert served.text_of("hello") == text
    outcomes = Counter[str]()
    for (_, outcome), number in Footprint.of(served.process.pid, served.http).requests.items():
        outcomes[outcome] += int(number)
    assert outcomes["aborted"] >= count // 2
    assert outcomes["server_error"] == outcomes["unavailable"] == 0


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.full)])
def test_row_28_requests_at_once(served: Command, count: int) -> None:
    """Each is served or gets a 503, the counts are the server's own, and nothing is left."""
    body = json.dumps(chat(user("hello"))).encode()
    text, before = served.text_of("hello"), Footprint.of(served.process.pid, served.http)

    async def at_once() -> Counter[str]:
        opening = asyncio.Semaphore(64)  # a client that is connected sends within the second that the server grants it
        ended = await asyncio.gather(*(send(address(served), CHAT, body, opening=opening) for _ in range(count)))
        texts = [json.loads(said)["choices"][0]["message"]["content"] for kind, said in ended if kind == "completed"]
        assert set(texts) == {text}
        refused = {said.split("{")[0].strip() for kind, said in ended if kind == "failed"}
        assert refused <= {"503"}
        return Counter(kind for kind, _ in ended)

    seen = asyncio.run(at_once())
    assert_no_leak(served.process.pid, served.http, before, memory=count == 10_000)
    after = Footprint.of(served.process.pid, served.http).requests
    grown = {outcome: after.get((CHAT, outcome), 0) - before.requests.get((CHAT, outcome), 0)
             for outcome in ("ok", "unavailable")}  # fmt: skip
    assert grown == {"ok": seen["completed"], "unavailable": seen["failed"]}
    assert seen["completed"] >= MAX_QUEUE
    assert seen["completed"] + seen["failed"] == count
    assert served.http.get("/ready").status_code == 200
    assert served.text_of("hello") == text
