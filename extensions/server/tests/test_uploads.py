"""Bodies that stall: they take no place in the queue, and give way; bodies of a million values are read elsewhere."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from corellm import AsyncLLM
from corellm_server import receiving
from corellm_server.aside import Aside
from corellm_server.connections import Connections
from corellm_server.errors import ApiError
from corellm_server.exchange import Exchange
from corellm_server.intake import Intake
from corellm_server.json_text import JsonCounter
from corellm_server.limits import RequestLimits
from corellm_server.options import ServerOptions
from corellm_server.receiving import receive_body
from corellm_server.uploads import Upload, Uploads
from extensions.server.tests.conftest import MODEL, Running, chat, serving, user
from extensions.server.tests.test_connections import CHAT, connected
from extensions.server.tests.test_promises import JSON, assert_serves, error_of
from tests.fixtures import wait_until

PROGRESS = 1 << 16
"""Bytes of a body."""
HEAD = (
    f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n".encode() + b"{"
)


FORM_SCOPE = {
    "type": "http", "method": "POST", "path": "/", "headers": [(b"content-type", b"multipart/form-data")],
    "client": ("10.0.0.1", 1),
}  # fmt: skip


@contextmanager
def stalling(running: Running, count: int, sent: bytes = HEAD) -> Iterator[list[Any]]:
    """Clients that have sent a part of a request, and send no more."""
    with ExitStack() as opened:
        clients = [opened.enter_context(connected(running)) for _ in range(count)]
        for client in clients:
            client.sendall(sent)
        wait_until(lambda: len(running.service.intake.uploads) >= count)
        yield clients
    wait_until(lambda: len(running.service.intake.uploads) == 0)


def test_row_36_stalled_bodies_take_no_place(llm: AsyncLLM) -> None:
    """With more of them than the queue has places, a good request is served at once."""
    with serving(llm, max_queue=4) as running, stalling(running, 300):
        assert len(running.service.intake) == 0
        assert_serves(running)


def test_row_36_stalled_bodies_are_cut_off(llm: AsyncLLM) -> None:
    """Long before the time for a whole body is up, also if a byte comes now and then."""
    with serving(llm, body_stall_timeout=0.4, body_timeout=600.0) as running:
        with stalling(running, 1) as (client,):
            responses: list[bytes] = []

            def is_told() -> bool:
                client.setblocking(False)
                try:
                    client.send(b" ")
                    responses.append(client.recv(1 << 16))
                except BlockingIOError:
                    return False
                except ConnectionError:
                    return True
                return True

            wait_until(is_told)
            assert responses[0].startswith(b"HTTP/1.1 408 ")
        assert_serves(running)


@pytest.mark.parametrize(
    "options",
    [{"max_uploads": 2}, {"max_uploads_per_client": 2}, {"max_held_bytes": 2 * (PROGRESS + len(HEAD))}],
    ids=["places", "places of an address", "bytes"],
)
def test_row_36_a_small_request_is_served_while_others_trickle(
    llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch, options: dict[str, int]
) -> None:
    """Bodies that make progress all the time take every place and byte of those that are arriving."""
    monkeypatch.setattr("corellm_server.uploads._GRACE_SECONDS", 1e9)  # none of them is seen to stall
    large = HEAD.replace(b"100", b"%d" % (PROGRESS + 100)) + b" " * PROGRESS
    with serving(llm, **options) as running, stalling(running, 2, large):
        wait_until(lambda: running.service.intake.num_bytes >= 2 * PROGRESS)
        assert_serves(running)


# --- which one gives way --------------------------------------------------------------------------------------------


class Clock:
    """An event loop's time, set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = asyncio.get_running_loop().time()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)


def exchange(client: str = "10.0.0.1", num_bytes: int = 0) -> Any:
    """What uploads know of a request."""
    return SimpleNamespace(client=client, num_bytes=num_bytes)


def upload(clock: Clock, of: Any = None) -> Upload:
    """A body of which nothing has come; no test waits for its time to be up."""
    made = Upload(of or exchange(), 10.0, clock.now + 60)
    made.time_limit = SimpleNamespace(expired=lambda: False, reschedule=lambda _: None)  # type: ignore[assignment]
    return made


def in_loop(test: Callable[[Clock], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test in an event loop whose time stands still."""

    async def run() -> None:
        test(Clock(monkeypatch))

    asyncio.run(run())


def test_row_36_the_one_that_stalls_for_longest_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the oldest, if it makes progress; and none that had no time for it."""

    def test(clock: Clock) -> None:
        uploads = Uploads(2, 2)
        with ExitStack() as coming:
            first, second, third = (upload(clock) for _ in range(3))
            for one in (first, second):
                coming.enter_context(uploads.entered(one))
                uploads.came(one, PROGRESS, more=True)
            with pytest.raises(ApiError) as refused, uploads.entered(third):
                uploads.came(third, PROGRESS, more=True)
            assert refused.value.status == 503
            clock.now += 2
            uploads.came(first, PROGRESS, more=True)
            uploads.came(second, 10, more=True)  # no progress
            third = upload(clock)
            coming.enter_context(uploads.entered(third))
            uploads.came(third, PROGRESS, more=True)
            assert second.refusal is not None
            assert first.refusal is third.refusal is None
            assert len(uploads) == 2
        assert len(uploads) == 0

    in_loop(test, monkeypatch)


def test_row_36_one_address_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a bound of its own, at which its own bodies give way, not those of others."""

    def test(clock: Clock) -> None:
        uploads = Uploads(10, 2)
        with ExitStack() as coming:
            other = upload(clock, exchange("10.0.0.2"))
            own = [upload(clock) for _ in range(2)]
            for one in (other, *own):
                coming.enter_context(uploads.entered(one))
                uploads.came(one, PROGRESS, more=True)
            with pytest.raises(ApiError, match=r"10\.0\.0\.1"), uploads.entered(one_more := upload(clock)):
                uploads.came(one_more, PROGRESS, more=True)
            clock.now += 2
            newest = upload(clock)
            coming.enter_context(uploads.entered(newest))
            uploads.came(newest, PROGRESS, more=True)
            assert other.refusal is None
            assert [one.refusal is None for one in own] == [False, True]

    in_loop(test, monkeypatch)


def test_row_36_bodies_that_bring_nothing_take_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many one address begins, those of others that make progress are taken."""

    def test(clock: Clock) -> None:
        uploads = Uploads(2, 2)
        with ExitStack() as coming:
            for _ in range(20):
                coming.enter_context(uploads.entered(upload(clock)))
            others = [upload(clock, exchange("10.0.0.2")) for _ in range(2)]
            for one in others:
                coming.enter_context(uploads.entered(one))
                uploads.came(one, PROGRESS, more=True)
            assert len(uploads) == 22
            assert all(one.refusal is None for one in others)

    in_loop(test, monkeypatch)


def test_row_36_bytes_of_stalled_bodies_are_given_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as are needed; and a request that is complete keeps its own."""

    def test(clock: Clock) -> None:
        uploads = Uploads(10, 10)
        intake = Intake(10, 1000, uploads)
        with ExitStack() as coming:
            stalled = [exchange(num_bytes=300) for _ in range(3)]
            for one in stalled:
                coming.enter_context(uploads.entered(upload(clock, one)))
                intake.hold(300)
            with pytest.raises(ApiError) as refused:
                intake.hold(400, is_arriving=True)
            assert refused.value.status == 503
            clock.now += 2
            intake.hold(400, is_arriving=True)
            assert [one.num_bytes for one in stalled] == [0, 300, 300]
            assert intake.num_bytes == 1000

    in_loop(test, monkeypatch)


@pytest.mark.parametrize("num_bytes", [400, 2000], ids=["as many as it needs", "none, if all are too few"])
def test_row_36_slow_bodies_give_their_bytes_to_a_request_that_has_come(
    monkeypatch: pytest.MonkeyPatch, num_bytes: int
) -> None:
    """Also while they make progress, the slowest first; those of which hardly anything came have none to give."""

    def test(clock: Clock) -> None:
        uploads = Uploads(10, 10)
        intake = Intake(10, 1000, uploads)
        with ExitStack() as coming:
            begun = upload(clock)
            coming.enter_context(uploads.entered(begun))
            slow = [exchange(num_bytes=300) for _ in range(3)]
            for of in slow:
                one = upload(clock, of)
                coming.enter_context(uploads.entered(one))
                uploads.came(one, PROGRESS, more=True)
                intake.hold(300)
            if num_bytes == 400:
                intake.hold(num_bytes)
                assert [of.num_bytes for of in slow] == [0, 300, 300]
                assert intake.num_bytes == 1000
            else:
                with pytest.raises(ApiError) as refused:
                    intake.hold(num_bytes)
                assert refused.value.status == 503
                assert intake.num_bytes == 900
            assert begun.refusal is None

    in_loop(test, monkeypatch)


@pytest.mark.parametrize("more", [True, False], ids=["a piece of it", "its end"])
def test_row_36_a_body_that_gives_way_to_itself_ends(monkeypatch: pytest.MonkeyPatch, more: bool) -> None:
    """It stalls for longest and brings bytes for which there is no room: nothing of it stays, counted or not."""

    async def run() -> None:
        clock = Clock(monkeypatch)
        intake = Intake(10, 1000, Uploads(10, 10))
        own = Exchange(FORM_SCOPE, None, Aside())  # type: ignore[arg-type]

        async def receive() -> dict[str, Any]:
            clock.now += 2
            later = own.num_bytes > 0
            return {"type": "http.request", "body": b"x" * (200 if later else 900), "more_body": more or not later}

        with pytest.raises(ApiError) as refused:
            await receive_body(own, receive, RequestLimits(), intake, is_form=True)
        assert refused.value.status == 503
        assert len(intake.uploads) == 0
        intake.leave(own, own.num_bytes)
        assert intake.num_bytes == 0

    asyncio.run(run())


def test_what_is_read_aside_keeps_its_turn_when_its_request_ends() -> None:
    """Requests that leave while a thread works on their bodies start no other thread beside it."""

    async def run() -> None:
        aside, gate, begun = Aside(), threading.Event(), threading.Event()
        threads = set[int]()

        def work() -> None:
            threads.add(threading.get_ident())
            begun.set()
            gate.wait(600)

        leaving = asyncio.ensure_future(aside.run(work))
        await asyncio.to_thread(begun.wait, 600)
        leaving.cancel()
        others = [asyncio.ensure_future(aside.run(work)) for _ in range(3)]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*others)
        assert len(threads) == 1

    asyncio.run(run())


def test_stalled_bodies_make_room_for_connections(llm: AsyncLLM) -> None:
    """With a body that stalls on every connection, others connect."""
    with serving(llm, max_connections=4, body_stall_timeout=60.0) as running, stalling(running, 4):
        assert running.get("/health").status_code == 200


def test_a_new_connection_costs_the_same_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no room, the one to close is found without a look at all others each time."""
    calls: Counter[str] = Counter()

    class Transport:
        def get_write_buffer_size(self) -> int:
            calls["looks"] += 1
            return 0

        def abort(self) -> None:
            calls["aborts"] += 1

    many = [SimpleNamespaceOf(Transport()) for _ in range(500)]
    state = SimpleNamespace(connections=set(many))
    connections = Connections(SimpleNamespace(config=None, server_state=state), None, ServerOptions(), bool)  # type: ignore[arg-type]
    now = time.monotonic()
    monkeypatch.setattr("corellm_server.connections.time", SimpleNamespace(monotonic=lambda: now))
    assert not connections._close_one()  # it has just been seen for the first time
    now += 2
    for _ in range(500):
        assert connections._close_one()
    assert calls["aborts"] == 500
    assert calls["looks"] < 10 * 500


class SimpleNamespaceOf:
    """A connection without a request."""

    def __init__(self, transport: Any) -> None:
        self.transport, self.cycle, self.timeout_keep_alive_task = transport, None, None


# --- a million values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 10_000])
def test_row_36_json_is_counted_outside_of_strings(cut: int) -> None:
    """Whatever strings have in them, and wherever the pieces of a body end."""
    strings = ["", ",[{:", '"', "\\", '\\"', "a\\\\", ',"', "é,", "\\u005c"]
    value = {text + str(i): [text, {text: [1, 2]}] for i, text in enumerate(strings)}
    body = json.dumps({"a": value, "b": [[], {}]}, separators=(",", ":")).encode()
    counter = JsonCounter()
    for start in range(0, len(body), cut):
        counter.add(body[start : start + cut])
    opened = 1 + 1 + 3 * len(strings) + 3
    keys = 2 + 2 * len(strings)
    commas = 1 + (len(strings) - 1) + 2 * len(strings) + 1
    assert (counter.num_values, counter.num_keys) == (opened + commas, opened + keys)


MANY = 1 << 20
BODIES = {
    "logit_bias": b'{"1":1' + b',"1":1' * MANY + b"}",
    "metadata": b'{"a":"b"' + b',"a":"b"' * MANY + b"}",
    "messages": b"[[]" + b",[]" * (MANY // 2 - 10) + b"]",
    "user": b"[" * 60 + b"]" * 60,
    "stop_token_ids": b"[1" + b",1" * (MANY - 10) + b"]",
    "stop": b'["a"' + b',"a"' * (MANY - 10) + b"]",
}
"""Fields of a request that is otherwise good."""


LONG = {**BODIES, "suffix": b'"' + b"x" * (63 << 20) + b'"', "tools": b"[" + b"[" * 60 + b"]" * 60 + b"]"}
"""The same fields, and others that a body of the largest size allowed has room for."""


def body_of(field: str, num_bytes: int = 0) -> bytes:
    """A good request, and the field, in so many bytes at least."""
    head = json.dumps({"model": MODEL, "max_tokens": 1, "prompt": "x"})[:-1]
    return (f'{head},"{field}":'.encode() + LONG[field]).ljust(num_bytes - 1) + b"}"


@pytest.mark.parametrize("field", ["logit_bias", "metadata", "messages"])
def test_row_36_a_million_keys_or_lists_are_refused_unparsed(
    llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    """They are counted while they come; no part of them is made an object."""
    parsed: list[bytes] = []
    monkeypatch.setattr(receiving, "read_object", lambda body, **_: parsed.append(body))
    with serving(llm) as running:
        response = running.post("/v1/completions", content=body_of(field), headers=JSON)
        assert error_of(response, 400)["code"] == "invalid_json"
    assert parsed == []


@pytest.mark.parametrize("field", ["stop_token_ids", "stop"])
def test_row_36_a_large_body_is_read_beside_the_event_loop(
    llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    """Parsed and checked in a thread; a small one in the event loop, which is quicker."""
    threads: list[str] = []
    for place, name in (("receiving", "read_object"), ("endpoints.replies", "checked_body")):
        real = getattr(__import__(f"corellm_server.{place}", fromlist=[name]), name)

        def noted(*args: Any, _real: Any = real, **kwargs: Any) -> Any:
            threads.append(threading.current_thread().name)
            return _real(*args, **kwargs)

        monkeypatch.setattr(f"corellm_server.{place}.{name}", noted)
    with serving(llm) as running:
        running.post(CHAT, chat(user("x")))
        small, threads[:] = set(threads), []
        response = running.post("/v1/completions", content=body_of(field), headers=JSON)
        assert error_of(response, 400)["param"] == field
    assert len(small) == 1
    assert len(threads) == 2
    assert small.isdisjoint(threads)


def test_row_36_others_are_answered_while_a_large_body_is_read(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe and a small request, whose responses come before the large one's body is parsed."""
    begun, others_answered = threading.Event(), threading.Event()
    real = receiving.read_object

    def read(body: bytes, **limits: Any) -> Any:
        if len(body) > MANY:
            begun.set()
            assert others_answered.wait(600)
        return real(body, **limits)

    monkeypatch.setattr(receiving, "read_object", read)
    with serving(llm) as running, ThreadPoolExecutor(1) as pool:
        large = pool.submit(running.post, "/v1/completions", content=body_of("stop"), headers=JSON)
        assert begun.wait(600)
        assert running.get("/health").status_code == 200
        assert_serves(running)
        assert not large.done()
        others_answered.set()
        assert error_of(large.result(600), 400)["param"] == "stop"


@pytest.mark.full
@pytest.mark.parametrize("num_bytes", [0, 64 << 20], ids=["", "of the largest size"])
@pytest.mark.parametrize("field", LONG)
def test_row_36_the_event_loop_is_never_held(llm: AsyncLLM, field: str, num_bytes: int) -> None:
    """No turn of it takes 50 ms of its thread's processor time, whatever the field; probes are answered meanwhile."""
    longest = 0.0
    body = body_of(field, num_bytes)
    with serving(llm, max_queue=16) as running:
        loop = running.server._loop
        assert loop is not None
        is_over = threading.Event()

        def turn(before: float) -> None:
            nonlocal longest
            now = time.thread_time()
            longest = max(longest, now - before)
            if not is_over.is_set():
                loop.call_soon(turn, now)

        with running.http() as client:
            client.post("/v1/completions", content=b"{}")
            loop.call_soon_threadsafe(lambda: turn(time.thread_time()))
            for _ in range(3):
                response = client.post("/v1/completions", content=body, headers=JSON)
                assert response.status_code in (200, 400)
                assert client.get("/health").status_code == 200
        is_over.set()
    assert longest < 0.05
