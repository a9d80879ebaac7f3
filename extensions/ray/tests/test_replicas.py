"""A server with two replicas answers as one engine does, and goes on where a replica ends or is replaced."""

from __future__ import annotations

import json
import random
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from corellm_ray.outbox import IDLE_SECONDS
from extensions.ray.tests.conftest import Replicated, until
from extensions.server.tests.command import CHAT
from extensions.server.tests.conftest import MODEL, Running, chat, image_part, user

pytestmark = pytest.mark.replicas
CONTENTS = [
    *(user(f"Tell me of number {number}.") for number in range(6)),
    *(user(image_part(seed), {"type": "text", "text": "What is it?"}) for seed in range(4)),
]
"""Conversations, with images and without."""
ENDED = "a replica ended with a request in flight"
"""In the log."""


def texts_of(one: Running, num_tokens: int) -> list[str]:
    """What one engine answers."""
    bodies = [chat(messages, max_tokens=num_tokens, ignore_eos=True) for messages in CONTENTS]
    return [one.post(CHAT, body).json()["choices"][0]["message"]["content"] for body in bodies]


def test_tokens_of_replicas_are_those_of_one_engine(replicated: Replicated, one: Running) -> None:
    """Both replicas take part, with texts and images, at once."""
    with ThreadPoolExecutor(len(CONTENTS)) as pool:
        responses = list(pool.map(lambda messages: replicated.asked(messages, 8), CONTENTS))
    assert [r.status_code for r in responses] == [200] * len(CONTENTS), [r.text for r in responses]
    assert [r.json()["choices"][0]["message"]["content"] for r in responses] == texts_of(one, 8)
    served = replicated.metric("generation_tokens_total")
    assert len(served) == 2
    assert all(served.values())
    assert sum(served.values()) >= 8 * len(CONTENTS)


def test_a_stream_of_the_openai_client(replicated: Replicated, one: Running) -> None:
    """Its pieces are the whole, one for each token or so, and its id is the request's."""
    client = replicated.client()
    with client.chat.completions.create(
        model=MODEL, messages=CONTENTS[0], temperature=0, max_tokens=12, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == texts_of(one, 12)[0]
    assert replicated.asked(CONTENTS[0], 1).headers["x-request-id"]


def test_the_first_stream_after_a_while_has_pieces_as_they_are_computed(replicated: Replicated) -> None:
    """Replicas close what they send pieces by when they have no request; who leaves early has had no whole answer."""
    time.sleep(3 * IDLE_SECONDS)
    before = sum(replicated.metric("generation_tokens_total").values())
    body = chat(CONTENTS[0], max_tokens=900, ignore_eos=True, stream=True)
    with replicated.command.http.stream("POST", CHAT, json=body) as response:
        pieces = (line for line in response.iter_lines() if '"content"' in line)
        for _ in range(2):  # the first of them is there before a replica has the request
            next(pieces)
    until(lambda: sum(replicated.metric("num_requests_running").values()) == 0)
    assert before < sum(replicated.metric("generation_tokens_total").values()) < before + 900


def test_errors_have_the_shape_and_words_of_one_server(replicated: Replicated, one: Running) -> None:
    """Wrong requests: in the gate, in preparation, in the engine's checks."""
    wrong = [
        chat(CONTENTS[0], temperature=-1),
        chat(CONTENTS[0], max_tokens=10**6),
        chat(user("word " * 5000)),
        chat(
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]
        ),
        {"model": "another", "messages": CONTENTS[0]},
    ]
    for body in wrong:
        ours, theirs = replicated.command.http.post(CHAT, json=body), one.post(CHAT, body)
        assert (ours.status_code, ours.json()) == (theirs.status_code, theirs.json())
        assert ours.status_code >= 400


def test_a_client_that_leaves_ends_its_request_in_the_replica(replicated: Replicated) -> None:
    """No replica goes on with it: it has not all of its tokens when none runs any more."""
    body = chat(CONTENTS[0], max_tokens=900, ignore_eos=True, stream=True)
    before = sum(replicated.metric("generation_tokens_total").values())
    with replicated.command.http.stream("POST", CHAT, json=body) as response:
        pieces = (line for line in response.iter_lines() if '"content"' in line)
        for _ in range(3):  # the first of them is there before a replica has the request
            next(pieces)
    until(lambda: sum(replicated.metric("num_requests_running").values()) == 0)
    assert sum(replicated.metric("generation_tokens_total").values()) < before + 900


def test_probes_and_the_log_tell_of_replicas(replicated: Replicated) -> None:
    """Health and readiness are those of the replicas; a request's line has the replica."""
    assert {replicated.command.http.get(path).status_code for path in ("/health", "/ready")} == {200}
    replicated.asked(CONTENTS[0], 1)
    until(lambda: set(re.findall(r'"replica": "(\w+)"', replicated.logged())) <= replicated.replicas)
    assert '"replica"' in replicated.logged()


class Load:
    """Clients that ask all the time, in streams and without, and what became of each request."""

    def __init__(self, running: Replicated, expected: list[str], num_tokens: int) -> None:
        self._running, self._expected, self._num_tokens = running, expected, num_tokens
        self._ended = threading.Event()
        self.answers = 0
        self.failures: list[tuple[int, str]] = []
        self.wrong: list[str] = []
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(6)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def goes_on(self, number: int) -> None:
        """Wait for so many further answers."""
        answered = self.answers
        until(lambda: self.answers >= answered + number)

    def _ask(self, number: int) -> None:
        choices = random.Random(number)
        while not self._ended.is_set():
            which = choices.randrange(len(CONTENTS))
            self._one(which, is_stream=bool(number % 2))

    def _one(self, which: int, *, is_stream: bool) -> None:
        response = self._running.asked(CONTENTS[which], self._num_tokens, stream=is_stream)
        if response.status_code != 200 or '"error"' in response.text:
            self.failures.append((response.status_code, response.text))
            return
        self.answers += 1
        text = _text_of_stream(response.text) if is_stream else response.json()["choices"][0]["message"]["content"]
        if text != self._expected[which]:
            self.wrong.append(text)


def _text_of_stream(text: str) -> str:
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.full)])
def test_a_killed_replica_costs_no_request_and_comes_back(replicated: Replicated, one: Running, kills: int) -> None:
    """What it had goes on on the other one, with the same tokens, none twice; streams as well."""
    with Load(replicated, texts_of(one, 48), 48) as load:
        while kills > 0 or ENDED not in replicated.logged():
            load.goes_on(3)
            before = replicated.replicas
            random.choice(replicated.processes).kill()
            until(lambda before=before: before - replicated.replicas)
            load.goes_on(6)
            until(lambda: len(replicated.replicas) == 2)
            kills -= 1
    assert (load.failures, load.wrong) == ([], [])


def test_replacing_all_replicas_loses_no_request(replicated: Replicated, one: Running) -> None:
    """SIGHUP: each goes once its successor is there, and has answered what it had."""
    before = replicated.replicas
    with Load(replicated, texts_of(one, 24), 24) as load:
        load.goes_on(3)
        replicated.command.process.send_signal(signal.SIGHUP)
        until(lambda: "the replicas of corellm are replaced" in replicated.logged())
        load.goes_on(6)
    assert (load.failures, load.wrong) == ([], [])
    until(lambda: len(replicated.replicas) == 2)
    assert not before & replicated.replicas
