"""A real server on a loopback port, in a thread, with a tiny LLaVA behind it."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from corellm import AsyncLLM
from corellm_server.limits import RequestLimits
from corellm_server.options import ServerConfig, ServerOptions
from corellm_server.running import HttpServer, bind, url_of
from corellm_server.service import Service
from tests.fixtures import random_image

MODEL = "tiny"
Serving = Callable[..., AbstractContextManager["Running"]]


@dataclass
class Running:
    """A server that runs, and what is behind it."""

    url: str
    service: Service
    server: HttpServer
    statuses: list[int]
    """The exit status, once it ended."""

    def post(self, path: str, body: Any = None, **arguments: Any) -> httpx.Response:
        """A response to a JSON body."""
        with self.http() as client:
            return client.post(path, json=body, **arguments)

    def get(self, path: str, **arguments: Any) -> httpx.Response:
        """A response to a GET."""
        with self.http() as client:
            return client.get(path, **arguments)

    def http(self) -> httpx.Client:
        """A client of plain HTTP: reading the usual certificates would take longer than most requests."""
        return httpx.Client(base_url=self.url, timeout=600, verify=False)

    def client(self, key: str = "unused") -> openai.OpenAI:
        """OpenAI's own client; each connection is closed with its response, as no test closes the client."""
        headers = {"Connection": "close"}
        return openai.OpenAI(
            base_url=self.url + "/v1", api_key=key, max_retries=0, default_headers=headers, http_client=self.http()
        )


class FakeFetcher:
    """Fetches by a function."""

    def __init__(self, fetch: Callable[..., Any]) -> None:
        self.fetch = fetch
        self.is_closed = False

    async def close(self) -> None:
        """What a server does with it at the end."""
        self.is_closed = True


@contextmanager
def serving(client: Any, fetch: Any = None, **options: Any) -> Iterator[Running]:
    """Serve an engine client; options are those of both classes."""
    limits = {name: options.pop(name) for name in [f.name for f in fields(RequestLimits)] if name in options}
    chosen = ServerOptions(**{"port": 0, "served_model_name": MODEL, "shutdown_timeout": 0.0, **options})
    fetcher = None if fetch is None else FakeFetcher(fetch)
    service = Service(client, MODEL, ServerConfig(options=chosen, limits=RequestLimits(**limits)), fetcher)
    with served(service) as running:
        yield running
    assert fetcher is None or fetcher.is_closed


@contextmanager
def served(service: Service, *others: Service) -> Iterator[Running]:
    """Serve one or several models."""
    options = service.config.options
    bound = bind(options)
    server, listening = HttpServer(service, bound, others), threading.Event()
    running = Running(url_of(bound, options), service, server, [])
    thread = threading.Thread(target=lambda: running.statuses.append(server.run(listening.set)))
    thread.start()
    try:
        assert listening.wait(600)
        yield running
    finally:
        server.stop()
        thread.join(600)
    assert not thread.is_alive()


@pytest.fixture(scope="session")
def llm(tiny_llava: Path) -> Iterator[AsyncLLM]:
    """The engine behind most servers."""
    loaded = AsyncLLM(str(tiny_llava), dtype="float32", block_size=8, max_num_seqs=16)
    yield loaded
    loaded.close()


@pytest.fixture(scope="session")
def running(llm: AsyncLLM) -> Iterator[Running]:
    """A server with default options."""
    with serving(llm) as server:
        yield server


def data_url(seed: int, width: int = 40, height: int = 30) -> str:
    """An image as a `data:` URL."""
    stream = io.BytesIO()
    random_image(width, height, seed).save(stream, "PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def user(*content: Any) -> list[dict[str, Any]]:
    """A conversation of one message."""
    is_text = len(content) == 1 and isinstance(content[0], str)
    return [{"role": "user", "content": content[0] if is_text else list(content)}]


def image_part(seed: int) -> dict[str, Any]:
    """An image as OpenAI's clients send it."""
    return {"type": "image_url", "image_url": {"url": data_url(seed)}}


def chat(messages: Any, **fields: Any) -> dict[str, Any]:
    """A greedy request of few tokens."""
    return {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 6, **fields}


def in_engine(llm: Any, function: Callable[[Any], Any]) -> Future[Any]:
    """Have the engine's thread call a function with the engine between two steps."""
    future: Future[Any] = Future()
    llm._inbox.put(lambda: future.set_result(function(llm.engine)))
    return future


def idle(running: Running) -> bool:
    """Whether the engine has no request and no block is held."""
    future = in_engine(
        running.service.client,
        lambda e: not e.has_unfinished_requests() and e.scheduler.blocks.num_free_blocks == e.scheduler.blocks.capacity,
    )
    return bool(future.result(600))
