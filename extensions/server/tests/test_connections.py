"""Connections: clients that do nothing, or stop halfway, are cut off; their number is bounded; others do not notice."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from corellm import AsyncLLM
from corellm.errors import ConfigError
from corellm_server.connections import allow_descriptors
from extensions.server.tests.conftest import Running, chat, in_engine, serving, user
from extensions.server.tests.fetching.hosts import CERTIFICATE
from tests.fixtures import wait_until

CHAT = "/v1/chat/completions"
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"


@contextmanager
def connected(running: Running) -> Iterator[socket.socket]:
    """A client's connection."""
    url = httpx.URL(running.url)
    with socket.create_connection((url.host, url.port or 0), timeout=600) as client:
        yield client


def is_open(client: socket.socket) -> bool:
    """Whether the server holds the connection open now; what it sent is thrown away."""
    client.setblocking(False)
    try:
        while client.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    return False


def num_connections(running: Running) -> int:
    """Connections that the server holds open."""
    return len(running.server._uvicorn.server_state.connections)


@pytest.mark.parametrize("sent", [b"", b"GET /hea", GET[:-2], GET + b"G", GET + GET + GET[:-2]])
def test_a_client_without_a_request_is_cut_off(llm: AsyncLLM, sent: bytes) -> None:
    """Whether it sends nothing, or a part of its first or of a later request's headers."""
    with serving(llm, client_timeout=0.4, keep_alive_timeout=1) as running, connected(running) as client:
        client.sendall(sent)
        wait_until(lambda: not is_open(client))
        wait_until(lambda: num_connections(running) == 0)


def test_headers_byte_by_byte_are_cut_off(llm: AsyncLLM) -> None:
    """Each byte comes in time; all of them would not."""
    with serving(llm, client_timeout=0.4) as running, connected(running) as client:
        header = iter(b"GET /health HTTP/1.1\r\nX: " + b"x" * 10_000)

        def drip() -> bool:
            try:
                client.send(bytes([next(header)]))
            except ConnectionError:
                return True
            return not is_open(client)

        wait_until(drip)


def test_a_body_that_stops_is_cut_off(llm: AsyncLLM) -> None:
    """The client is told, and the connection closed."""
    with serving(llm, body_timeout=0.3) as running, connected(running) as client:
        client.sendall(POST + b"{")
        response = b""
        while received := client.recv(1 << 16):
            response += received
        assert response.startswith(b"HTTP/1.1 408 ")
        assert len(running.service.intake) == 0


def test_a_client_that_reads_nothing_is_cut_off(llm: AsyncLLM) -> None:
    """Its responses fill the system's buffers and the server's; then it is aborted, not waited for."""
    with serving(llm, client_timeout=0.4) as running, connected(running) as client:
        client.setblocking(False)
        many = GET.replace(b"health", b"openapi.json") * 100

        def is_cut_off() -> bool:
            try:
                client.send(many)
            except BlockingIOError:
                return False
            except ConnectionError:
                return True
            return False

        wait_until(is_cut_off)
        wait_until(lambda: num_connections(running) == 0)
        assert len(running.service.intake) == 0


def test_a_slow_server_is_not_the_clients_fault(llm: AsyncLLM) -> None:
    """A connection whose request is in flight, and one that is kept for the next request, outlast the client's time."""
    with serving(llm, client_timeout=2) as running, running.http() as kept:
        assert kept.get("/health").status_code == 200
        stall, responses = threading.Event(), []
        in_engine(llm, lambda _: stall.wait(600))
        thread = threading.Thread(target=lambda: responses.append(running.post(CHAT, chat(user("x")))))
        thread.start()
        wait_until(lambda: len(running.service.intake) == 1)
        before = set(running.server._uvicorn.server_state.connections)
        with connected(running) as silent:  # is cut off after the time that the others had too
            wait_until(lambda: not is_open(silent))
        assert set(running.server._uvicorn.server_state.connections) == before
        stall.set()
        thread.join(600)
        assert responses[0].status_code == kept.get("/health").status_code == 200


def test_a_kept_connection_is_closed_in_the_end(llm: AsyncLLM) -> None:
    """After `keep_alive_timeout`."""
    with serving(llm, keep_alive_timeout=1) as running, connected(running) as client:
        client.sendall(GET)
        wait_until(lambda: not is_open(client))


def test_silent_connections_make_room(llm: AsyncLLM) -> None:
    """With all of them taken, requests are served, and no more are open than allowed."""
    with serving(llm, max_connections=4) as running, ExitStack() as opened:
        silent = [opened.enter_context(connected(running)) for _ in range(4)]
        wait_until(lambda: num_connections(running) == 4)
        silent[1].sendall(GET)
        assert silent[1].recv(12) == b"HTTP/1.1 200"
        for _ in range(20):
            assert running.get("/health").status_code == 200
            assert num_connections(running) <= 4
        assert not all(map(is_open, silent))


def test_requests_in_flight_are_not_closed_for_others(llm: AsyncLLM) -> None:
    """A client waits for a connection while all have requests in flight, and is served after them."""
    with serving(llm, max_connections=2) as running:
        stall = threading.Event()
        in_engine(llm, lambda _: stall.wait(600))
        responses: list[httpx.Response] = []

        def ask(*_: Any) -> None:
            responses.append(running.post(CHAT, chat(user("x"))))

        threads = [threading.Thread(target=ask) for _ in range(5)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(running.service.intake) == 2)
        assert num_connections(running) == 2
        stall.set()
        for thread in threads:
            thread.join(600)
        assert [response.status_code for response in responses] == [200] * 5


def test_a_handshake_that_never_ends_is_cut_off(llm: AsyncLLM) -> None:
    """Before TLS is agreed upon, connections are counted and timed like others."""
    tls = {"ssl_certfile": CERTIFICATE, "ssl_keyfile": CERTIFICATE}
    with serving(llm, client_timeout=0.4, max_connections=2, **tls) as running, ExitStack() as opened:
        clients = [opened.enter_context(connected(running)) for _ in range(3)]
        for client in clients:
            client.sendall(b"\x16\x03\x01")  # a record begins
        for client in clients:
            wait_until(lambda client=client: not is_open(client))  # type: ignore[misc]


def test_handshakes_make_room(llm: AsyncLLM) -> None:
    """Connections that never begin TLS are closed for new ones, long before their time is up."""
    tls = {"ssl_certfile": CERTIFICATE, "ssl_keyfile": CERTIFICATE}
    with serving(llm, client_timeout=60.0, max_connections=3, **tls) as running, ExitStack() as opened:
        silent = [opened.enter_context(connected(running)) for _ in range(6)]
        with httpx.Client(base_url=running.url, verify=False, timeout=600) as client:
            assert client.get("/health").status_code == 200
        assert sum(map(is_open, silent)) <= 3


def test_a_burst_is_counted(llm: AsyncLLM) -> None:
    """Connections that come at once are not more than allowed, either."""
    with serving(llm, max_connections=4) as running, ExitStack() as opened:
        assert running.server._loop is not None
        all_sent = threading.Event()
        running.server._loop.call_soon_threadsafe(all_sent.wait, 600)  # they wait to be accepted meanwhile
        for _ in range(10):
            opened.enter_context(connected(running))
        all_sent.set()
        most = 0

        def has_room() -> bool:
            nonlocal most
            most = max(most, num_connections(running))
            return num_connections(running) == 4

        wait_until(has_room)
        assert most <= 4


def test_descriptors_for_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """The soft limit is raised; where the hard one does not allow it, the error says how to."""
    limits: list[Any] = [(100, 5000)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    allow_descriptors(1000)
    assert limits[-1] == (1256, 5000)
    allow_descriptors(10)
    assert limits[-1] == (1256, 5000)
    with pytest.raises(ConfigError, match=r"6256 .* 5000"):
        allow_descriptors(6000)
