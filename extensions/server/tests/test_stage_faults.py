"""A fault in any stage of a request's way costs that request; faults of all requests end the server, visibly."""

from __future__ import annotations

import base64
import io
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from extensions.server.tests import faulty
from extensions.server.tests.command import CHAT, Command, command
from extensions.server.tests.conftest import MODEL, chat, image_part, user
from extensions.server.tests.footprint import Footprint, assert_no_leak
from tests.fixtures import wait_until

COMPLETE = "/v1/completions"
UNMARKED = {str(token): -100 for token in (faulty.LOGITS, faulty.SAMPLED, faulty.DETOKENIZED)}


def showing(size: tuple[int, int] = (40, 30), colour: tuple[int, int, int] = (9, 99, 9)) -> dict[str, Any]:
    """A request about an image of one colour."""
    stream = io.BytesIO()
    Image.new("RGB", size, colour).save(stream, "PNG")
    url = "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
    return chat(user({"type": "image_url", "image_url": {"url": url}}, "what?"), logit_bias=UNMARKED)


def prompted(prompt: list[int], **fields: Any) -> dict[str, Any]:
    """A request of token ids."""
    given = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 20, "ignore_eos": True}
    return {**given, "logit_bias": UNMARKED, **fields}


STAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "parsing": (CHAT, showing(size=faulty.PARSED)),
    "processing": (CHAT, showing(size=faulty.PROCESSED)),
    "encoder": (CHAT, showing(colour=faulty.ENCODED)),
    "merging": (CHAT, showing(colour=faulty.MERGED)),
    "logits": (COMPLETE, prompted([1, 50, faulty.LOGITS])),
    "sampler": (COMPLETE, prompted([1, 50], logit_bias={}, allowed_token_ids=[faulty.SAMPLED])),
    "detokenizer": (COMPLETE, prompted([1, 50], logit_bias={}, allowed_token_ids=[faulty.DETOKENIZED])),
}


@pytest.fixture(scope="module")
def served(tiny_llava: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """A server with the extension, warmed up."""
    folder = tmp_path_factory.mktemp("faulty")
    with command(tiny_llava, folder, faulty.install(folder), block_size=8, max_num_seqs=4) as running:
        with ThreadPoolExecutor(4) as pool:
            for response in pool.map(lambda seed: running.http.post(CHAT, json=canary(seed)), range(8)):
                assert response.status_code == 200, response.text
        yield running


def canary(seed: int) -> dict[str, Any]:
    """A request that no stage fails for."""
    return chat(user(image_part(seed), "go on"), max_tokens=12, ignore_eos=True, logit_bias=UNMARKED)


@contextmanager
def canaries(http: httpx.Client) -> Iterator[None]:
    """Have requests in flight all the time, each with the output that it has alone."""
    wanted = [output_of(http, canary(seed)) for seed in range(1)]
    stopped, wrong = threading.Event(), []

    def ask(seed: int) -> None:
        with httpx.Client(base_url=http.base_url, timeout=600) as client:
            while not stopped.is_set():
                if (got := output_of(client, canary(seed))) != wanted[seed]:
                    wrong.append((seed, got))

    threads = [threading.Thread(target=ask, args=[seed]) for seed in range(1)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
    assert wrong == []


def output_of(http: httpx.Client, body: dict[str, Any]) -> str:
    """What a client gets of a request: the output, or the response."""
    response = http.post(CHAT, json=body)
    return str(response.json()["choices"][0]["message"]["content"] if response.status_code == 200 else response.text)


def error_of(http: httpx.Client, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The status and the error of a response, which is in its last event if it is a stream that began."""
    response = http.post(path, json=body)
    if response.headers["content-type"].startswith("text/event-stream"):
        *_, last = (line for line in response.text.splitlines() if line)
        return response.status_code, json.loads(last.removeprefix("data: "))["error"]
    return response.status_code, response.json()["error"]


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.full)])
@pytest.mark.parametrize("stream", [False, True])
def test_row_23_a_fault_costs_its_own_request(served: Command, times: int, *, stream: bool) -> None:
    """500 with an id that the log has beside the cause, in every stage; others have their outputs; nothing is left."""
    before = Footprint.of(served.process.pid, served.http)
    with canaries(served.http):
        for stage, (path, body) in STAGES.items():
            for _ in range(times):
                status, error = error_of(served.http, path, {**body, "stream": stream})
                begun = {200} if stage == "sampler" and stream else set()  # if its first token was sent by then
                assert status in {500} | begun, (stage, error)
                assert (error["type"], error["code"]) == ("server_error", "internal_error"), stage
                assert "secret" not in error["message"]
                incident = re.fullmatch(r"internal error (\w+);.*", error["message"])
                assert incident is not None
                assert incident[1] in served.log.read_text()
    assert faulty.SECRET in served.log.read_text()
    assert_no_leak(served.process.pid, served.http, before, memory=times == 20)


def test_row_24_the_batch_fails_and_the_queue_goes_on(tiny_llava: Path, tmp_path: Path) -> None:
    """Requests that run when the forward pass fails get a 500, those that wait run; three such steps in a row are one
    too many: every client is told, and the exit status is 1.
    """
    environment = faulty.install(tmp_path)
    failing = Path(environment[faulty.FAILING_STEPS])
    options = {"max_num_seqs": 2, "enforce_eager": True}  # a recorded plan does not run the model's code
    with command(tiny_llava, tmp_path, environment, **options) as running, ThreadPoolExecutor(6) as pool:
        body = chat(user("go on"), max_tokens=200, ignore_eos=True, logit_bias=UNMARKED)
        running.text_of("hello")  # starts the child that renders templates
        before = Footprint.of(running.process.pid, running.http)

        def asked() -> list[Any]:
            sent = [pool.submit(running.http.post, CHAT, json=body) for _ in range(6)]
            wait_until(lambda: running.metric("corellm:num_requests_running") == 2)
            wait_until(lambda: running.metric("corellm:num_requests_waiting") == 4)
            return sent

        sent = asked()
        faulty.fail_steps(failing, 3)  # the batch, and each of its two requests alone; the check after it succeeds
        statuses = sorted(future.result().status_code for future in sent)
        assert statuses == [200] * 4 + [500] * 2
        assert_no_leak(running.process.pid, running.http, before)
        sent = asked()
        faulty.fail_steps(failing, 1_000_000)
        results = [future.result() for future in sent]
        assert {response.status_code for response in results} <= {500, 503}
        assert {response.json()["error"]["code"] for response in results} <= {"internal_error", "engine_dead"}
        assert running.process.wait(600) == 1
        assert "in a row" in running.log.read_text()
