"""Two engines on one machine serve as one engine does: the same tokens, streams, cancels; and one may be killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest

from corellm import AsyncLLM, SamplingParams
from corellm.errors import AbsentMethodError, ConfigError, EngineDeadError, EngineLostError, PromptError
from corellm.sampling_params import RequestOutputKind
from corellm.serving import ProcessedPrompt, name_of, plain_metrics
from corellm.serving import metrics_of as of_plain
from corellm.system.log_format import JsonFormatter
from corellm_server.batch import running as running_module
from corellm_server.batch.input_file import BatchRequest
from corellm_server.data_parallel import group, placing
from corellm_server.data_parallel.client import DataParallelLLM
from corellm_server.data_parallel.division import devices_of, in_order, shares_of
from corellm_server.data_parallel.group import pause
from corellm_server.data_parallel.placing import Placing
from corellm_server.data_parallel.sending import Request, SendingLink, _Job
from corellm_server.errors import ApiError
from corellm_server.routing import key_of, preferences
from corellm_server.suspects import Suspects, print_of
from corellm_server.watchdog import Watchdog
from extensions.server.tests.command import CHAT
from extensions.server.tests.conftest import Running, chat, image_part, serving, user
from tests.fixtures import wait_until

ENGINE = {"dtype": "float32", "block_size": 8, "max_num_seqs": 16}
ENDLESS = {"max_tokens": 400, "extra_body": {"ignore_eos": True}}
LONG: dict[str, Any] = {"max_tokens": 200, "extra_body": {"ignore_eos": True}}
"""So long that requests which are sent together run together."""


@pytest.fixture(scope="module")
def both(tiny_llava: Path) -> Iterator[Running]:
    """A server with two engines."""
    with (
        contextlib.closing(DataParallelLLM(str(tiny_llava), data_parallel_size=2, **ENGINE)) as llm,
        serving(llm, enable_sleep_mode=True) as server,
    ):
        yield server


def engines(server: Running) -> DataParallelLLM:
    """What is behind it."""
    client = server.service.client
    assert isinstance(client, DataParallelLLM)
    return client


def questions(count: int) -> list[Any]:
    """Conversations, half of them about one of three images."""
    return [
        user(image_part(number % 3), {"type": "text", "text": f"what is {number}?"})
        if number % 2
        else user(f"{number}!")
        for number in range(count)
    ]


def text_of(client: openai.OpenAI, messages: Any, *, stream: bool, **fields: Any) -> str:
    """What a client reads of a greedy output."""
    asked: dict[str, Any] = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 12, **fields}
    if not stream:
        return client.chat.completions.create(**asked).choices[0].message.content or ""
    return "".join(part.choices[0].delta.content or "" for part in client.chat.completions.create(**asked, stream=True))


def metrics_of(server: Running, name: str) -> dict[str, float]:
    """A metric of the engine by the label of the engines."""
    lines = server.get("/metrics").text.splitlines()
    found = [line.rsplit(" ", 1) for line in lines if line.startswith(f"corellm:{name}{{")]
    return {label.split('replica="')[1].split('"')[0]: float(value) for label, value in found}


def num_in_engines(server: Running) -> int:
    """Requests that engines have."""
    return sum(link.num_requests for link in engines(server).group._links.copy().values())


def test_engines_keep_to_their_processors_and_threads(both: Running) -> None:
    """Each process runs on its share alone."""
    shares = [os.sched_getaffinity(pid) for pid in engines(both).pids.values()]
    assert len(shares) == 2
    assert not shares[0] & shares[1]
    assert shares[0] | shares[1] == os.sched_getaffinity(0)


def test_outputs_are_those_of_one_engine(both: Running, running: Running) -> None:
    """Token for token, at the same time, streamed or not, with images and without; and both engines have their part."""
    asked = questions(24)
    alone, several = running.client(), both.client()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: text_of(several, asked[n], stream=n % 3 == 0), range(24)))
    assert found == [text_of(alone, messages, stream=False) for messages in asked]
    tokens = metrics_of(both, "generation_tokens_total")
    assert tokens.keys() == {"0", "1"}
    assert all(tokens.values())


def test_a_call_is_of_the_engine_of_a_prompt_alone(
    both: Running, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that had its request, or another while that gives no sign of life; a single one has all."""
    client = engines(both)
    prompts = [client.input_processor.process(f"USER: {number} ASSISTANT:") for number in range(6)]
    numbers = [preferences(key_of(prompt), (0, 1))[0] for prompt in prompts]
    assert {*numbers} == {0, 1}

    def tokens(plain: Any) -> float:
        return next(one.value for one in of_plain(plain) if one.name == "corellm:generation_tokens")

    async def ask() -> None:
        for number, prompt in zip(numbers, prompts, strict=True):
            before = await client.in_engines(plain_metrics)
            await token_ids(client, prompt)
            assert tokens(await client.in_engine_of(prompt, plain_metrics)) == tokens(before[number]) + 6
        monkeypatch.setattr(group, "is_silent", lambda link: link.pid == client.pids[number])
        of_both = await client.in_engines(plain_metrics)
        if tokens(of_both[0]) == tokens(of_both[1]):  # they could not be told apart
            await token_ids(client, prompt)
            of_both = await client.in_engines(plain_metrics)
        assert tokens(await client.in_engine_of(prompt, plain_metrics)) == tokens(of_both[1 - number])
        assert tokens(of_both[0]) != tokens(of_both[1])
        alone = running.service.client
        assert await alone.in_engine_of(prompt, plain_metrics) == await alone.in_engine(plain_metrics)

    asyncio.run(ask())


def test_an_image_is_encoded_once(both: Running) -> None:
    """Its requests go to the engine that has seen it, whatever is asked, and each key has its own caches."""
    before = metrics_of(both, "encoder_cache_queries_total")
    client = both.client()
    for number in range(4):
        text_of(client, user(image_part(77), f"{number}?"), stream=False, max_tokens=1)
    after = metrics_of(both, "encoder_cache_queries_total")
    asked = [after[name] - before[name] for name in before]
    assert sorted(asked) == [0, 4]


def test_clients_that_leave_end_their_requests(both: Running) -> None:
    """In either engine, in the middle of a stream."""
    client = both.client()
    streams = [
        client.chat.completions.create(model="tiny", messages=messages, stream=True, **ENDLESS)  # type: ignore[arg-type]
        for messages in questions(6)
    ]
    for stream in streams:
        next(iter(stream))
    for stream in streams:
        stream.close()
    wait_until(lambda: num_in_engines(both) == 0)
    assert both.get("/ready").status_code == 200


def answers_of(server: Running, wanted: list[str], moment: float) -> tuple[int, int]:
    """Kill an engine while it has its part of requests; returns how many were answered, and how many failed."""
    asked = questions(len(wanted))

    def ask(number: int) -> str:
        try:
            return text_of(server.client(), asked[number], stream=number % 2 == 0, **LONG)
        except openai.APIError as error:
            return str(error)

    with ThreadPoolExecutor(len(wanted)) as pool:
        sent = [pool.submit(ask, number) for number in range(len(wanted))]
        wait_until(lambda: all(link.num_requests for link in engines(server).group._links.values()))
        time.sleep(moment)
        os.kill(random.Random(moment).choice(sorted(engines(server).pids.values())), signal.SIGKILL)
        assert server.get("/ready").status_code == 200
        found = [future.result(600) for future in sent]
    failed = [one for one, text in zip(found, wanted, strict=True) if one != text]
    assert all("ended while it had the request; send it again" in one for one in failed)
    return len(found) - len(failed), len(failed)


def test_a_killed_engine_costs_its_own_requests_and_comes_back(both: Running, running: Running) -> None:
    """Each request is answered as ever or has one clear error; new ones are answered meanwhile, and `/ready` is 200."""
    wanted = [text_of(running.client(), messages, stream=False, **LONG) for messages in questions(12)]
    before = engines(both).pids
    answered, failed = answers_of(both, wanted, 0.0)
    assert answered
    assert failed
    assert text_of(both.client(), questions(2)[1], stream=True, **LONG) == wanted[1]
    wait_until(lambda: len(engines(both).pids) == 2)
    assert len({*before.values(), *engines(both).pids.values()}) == 3
    again = [text_of(both.client(), messages, stream=False, **LONG) for messages in questions(12)]
    assert again == wanted
    assert both.get("/health").status_code == 200


@pytest.mark.full
@pytest.mark.parametrize("moment", range(10))
def test_a_kill_at_any_moment(both: Running, running: Running, moment: int) -> None:
    """Ten moments of a load: nothing is answered wrongly, or twice, or never."""
    wanted = [text_of(running.client(), messages, stream=False, **LONG) for messages in questions(16)]
    assert sum(answers_of(both, wanted, random.Random(moment).random() / 2)) == 16
    wait_until(lambda: len(engines(both).pids) == 2)
    assert [text_of(both.client(), one, stream=False, **LONG) for one in questions(16)] == wanted  # and are no suspects


def test_an_engine_that_hangs_is_started_again(both: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests fail as if it had been killed, calls do not say that the server ends, and the other goes on."""
    wait_until(lambda: len(engines(both).pids) == 2)
    text = text_of(both.client(), user(image_part(5), "what?"), stream=False)
    stream = both.client().chat.completions.create(
        model="tiny", messages=user(image_part(5), "go on"), stream=True, **ENDLESS  # type: ignore[arg-type]
    )  # fmt: skip
    next(iter(stream))
    (number,) = [n for n, link in engines(both).group._links.items() if link.num_requests]
    monkeypatch.setattr(Watchdog, "is_hung", property(lambda watchdog: watchdog._silent_seconds >= 10))
    os.kill(engines(both).pids[number], signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(lambda: asyncio.run(engines(both).in_engines(plain_metrics)))
        with pytest.raises(openai.APIError, match="ended while it had the request"):
            list(stream)
        with pytest.raises(EngineLostError, match=f"engine {number} ended during the call, and is started again"):
            called.result(600)
    assert both.statuses == []
    assert text_of(both.client(), user(image_part(5), "what?"), stream=False) == text
    wait_until(lambda: len(engines(both).pids) == 2)


def large(client: DataParallelLLM, number: int, engine: int) -> tuple[ProcessedPrompt, ProcessedPrompt]:
    """A prompt that is to go to an engine, whose message is larger than what a socket holds; and without what makes it
    so large.
    """
    text = f"USER: number {number} ASSISTANT:"
    small = client.input_processor.process(text)
    for salt in map(str, range(100)):
        prompt = client.input_processor.process({"prompt": text, "cache_salt": salt * (1 << 20)})
        if preferences(key_of(prompt), (0, 1))[0] == engine:
            return prompt, small
    raise AssertionError("all keys are another engine's")


async def token_ids(model: AsyncLLM, prompt: ProcessedPrompt) -> Sequence[int]:
    """A greedy output of six tokens."""
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    return [output async for output in model.generate(prompt, params)][-1].outputs[0].token_ids


async def until_there_are(client: DataParallelLLM, number: int) -> None:
    """Wait for so many requests of the first engine."""
    while client.group._links[0].num_requests != number:
        await asyncio.sleep(0.01)


def test_an_engine_that_does_not_read_keeps_no_other_waiting(
    both: Running, llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped, it is sent more than its socket holds; the other one answers meanwhile, and it does when it goes on."""
    client = engines(both)
    monkeypatch.setattr(placing, "SILENT_SECONDS", 1e9)  # it is taken for a busy one
    wait_until(lambda: len(client.pids) == 2)
    (to_stopped, small), (to_other, _), (given_up, _) = (large(client, n, engine) for n, engine in enumerate((0, 1, 0)))

    async def ask() -> None:
        stuck = asyncio.create_task(token_ids(client, to_stopped))
        await until_there_are(client, 1)
        assert len(await token_ids(client, to_other)) == 6
        left = asyncio.create_task(token_ids(client, given_up))
        await until_there_are(client, 2)
        left.cancel()  # what was not sent is not kept
        await until_there_are(client, 1)
        assert not stuck.done()
        os.kill(client.pids[0], signal.SIGCONT)
        assert await stuck == await token_ids(llm, small)

    os.kill(client.pids[0], signal.SIGSTOP)
    try:
        asyncio.run(ask())
    finally:
        os.kill(client.pids[0], signal.SIGCONT)


def test_what_a_silent_engine_was_not_sent_goes_to_another(both: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it may have read waits for it."""
    client = engines(both)
    read, unread = (large(client, number, 0)[0] for number in range(2))

    async def ask() -> None:
        stuck = asyncio.create_task(token_ids(client, read))
        await until_there_are(client, 1)
        waiting = asyncio.create_task(token_ids(client, unread))
        await until_there_are(client, 2)
        monkeypatch.undo()
        monkeypatch.setattr(placing, "SILENT_SECONDS", 2.0)
        assert len(await waiting) == 6
        assert not stuck.done()
        os.kill(client.pids[0], signal.SIGCONT)
        assert len(await stuck) == 6

    monkeypatch.setattr(placing, "SILENT_SECONDS", 1e9)
    os.kill(client.pids[0], signal.SIGSTOP)
    try:
        asyncio.run(ask())
    finally:
        os.kill(client.pids[0], signal.SIGCONT)


def test_a_prompt_that_ends_engines_is_refused(both: Running) -> None:
    """At its third time, also if a client leaves meanwhile; without any engine others have an error that asks for a new
    try, and then all serve again.
    """
    client, others = both.client(), user("another one")
    wanted = text_of(client, others, stream=False)
    for client_leaves in (False, True):
        stream = client.chat.completions.create(
            model="tiny", messages=user("deadly"), stream=True, **ENDLESS  # type: ignore[arg-type]
        )  # fmt: skip
        next(iter(stream))
        (number,) = [n for n, link in engines(both).group._links.items() if link.num_requests]
        pid = engines(both).pids[number]
        if client_leaves:
            os.kill(pid, signal.SIGSTOP)
            stream.close()
            wait_until(lambda: not engines(both)._streams)
        os.kill(pid, signal.SIGKILL)
        if client_leaves:
            wait_until(lambda: pid not in engines(both).pids.values())  # noqa: B023
        else:
            with pytest.raises(openai.APIError, match="ended while it had the request"):
                list(stream)
    with pytest.raises(openai.BadRequestError, match="engines ended while they had this request"):
        client.chat.completions.create(model="tiny", messages=user("deadly"), **ENDLESS)  # type: ignore[call-overload]
    told = both.post(CHAT, chat(others))  # engines may be there again
    assert told.status_code == 200 or (told.status_code, told.json()["error"]["code"]) == (503, "engine_lost")
    wait_until(lambda: len(engines(both).pids) == 2)
    assert text_of(client, others, stream=False) == wanted
    assert both.statuses == []


def test_engines_do_not_write_one_trace(both: Running) -> None:
    with pytest.raises(AbsentMethodError, match="a trace is of one engine"):
        asyncio.run(engines(both).start_profile())


def test_all_engines_sleep_and_none_is_started_again_then(both: Running) -> None:
    """A new one would be awake, or have other weights: the server ends as one with one engine does."""
    assert both.post("/sleep?level=3").status_code == 400  # which is no sleep
    assert not engines(both).group.num_changes
    assert both.post("/sleep").status_code == 200
    assert metrics_of(both, "is_sleeping") == {"0": 1, "1": 1}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(both.post, CHAT, chat(user("hello")))
        wait_until(lambda: num_in_engines(both) == 1)
        assert both.post("/wake_up").status_code == 200
        assert waiting.result(600).status_code == 200
    assert metrics_of(both, "is_sleeping") == {"0": 0, "1": 0}
    os.kill(engines(both).pids[1], signal.SIGKILL)
    wait_until(lambda: both.statuses == [1])
    with pytest.raises(httpx.ConnectError):
        both.get("/health")


def test_a_batch_gives_a_request_to_another_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for ever, as a request may be what ends engines; and not once none is left."""
    codes = ["engine_lost", "engine_lost", "engine_dead", "engine_lost"]

    async def post(app: Any, path: str, body: bytes) -> Any:
        return SimpleNamespace(exchange=SimpleNamespace(failure=ApiError(503, "it ended", code=codes.pop(0))))

    monkeypatch.setattr(running_module, "post", post)
    client: Any = SimpleNamespace(dead="it was killed")
    app: Any = None
    with pytest.raises(EngineDeadError, match="it was killed"):
        asyncio.run(running_module.finish(app, client, BatchRequest(1, "a", "/v1/completions", b"{}")))
    assert codes == ["engine_lost"]


def test_requests_of_a_batch_are_done_again_once_an_engine_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """What none can have meanwhile is not given up."""
    asked: list[str] = []
    client: Any = SimpleNamespace(dead=None, seconds_silent=math.inf)
    app: Any = None

    async def post(app: Any, path: str, body: bytes) -> Any:
        asked.append(name := body.decode())
        await asyncio.sleep(0)
        if asked.count(name) == 1:
            failure = ApiError(503, "it ended", code="engine_lost")
            return SimpleNamespace(exchange=SimpleNamespace(failure=failure))
        assert math.isfinite(client.seconds_silent)
        return SimpleNamespace(exchange=SimpleNamespace(failure=None))

    async def run() -> list[Any]:
        requests = [BatchRequest(1, name, "/v1/completions", name.encode()) for name in "abc"]
        tasks = [asyncio.ensure_future(running_module.finish(app, client, one)) for one in requests]
        for _ in range(10):
            await asyncio.sleep(0)
        client.seconds_silent = 0.0
        return await asyncio.gather(*tasks)

    monkeypatch.setattr(running_module, "post", post)
    monkeypatch.setattr(running_module, "of_reply", lambda request, reply: request.custom_id)
    monkeypatch.setattr(running_module, "_PAUSE_SECONDS", 0.0)
    assert asyncio.run(run()) == ["a", "b", "c"]
    assert asked == ["a", "b", "c"] * 2


class ScriptedLink:
    """An engine that has requests until it is told that it finished them, or ended."""

    def __init__(self, has_ended: bool = False, *, is_full: bool = False) -> None:
        self.has: list[str] = []
        self.ended: list[str] = []
        self.is_full, self.seconds_silent, self._has_ended = is_full, 0.0, has_ended

    @property
    def num_requests(self) -> int:
        return len(self.has)

    def add(self, request_id: str, *_: object) -> None:
        if self._has_ended:
            raise EngineDeadError("the engine's process ended")
        self.has.append(request_id)

    def abort_request(self, request_id: str, *, silently: bool) -> None:
        self.ended.append(request_id)


class Engines:
    """Two such engines or more, and what comes of requests, whose ids are their prompts."""

    def __init__(self, *links: ScriptedLink, awaits_engines: bool = False) -> None:
        self.links: Any = dict(enumerate(links))
        self.refused: dict[str, str] = {}
        self.awaits_engines = awaits_engines
        self.placing = Placing(self.links, lambda: self.awaits_engines, self._refuse)

    def _refuse(self, request: Request, error: Exception) -> None:
        self.refused[request.request_id] = str(error)

    def add(self, *names: str, seed: int | None = None) -> None:
        """Send a request; the engine of its key depends on it."""
        for name in names:
            params = SamplingParams(seed=seed)
            self.placing.add(Request(name, ProcessedPrompt(None, [*name.encode()], []), params, None, 0.0))

    def finish(self, *names: str) -> None:
        """Have the engine that has them finish requests."""
        for name in names:
            next(link for link in self.links.values() if name in link.has).has.remove(name)
            self.placing.finish(name)

    def end(self, number: int) -> None:
        """End an engine; an empty one comes in its place."""
        link = self.links.pop(number)
        self.placing.note_end(link.has)
        self.links[number] = ScriptedLink()
        self.placing.place()

    @property
    def has(self) -> list[list[str]]:
        """What each engine has."""
        return [sorted(self.links[number].has) for number in sorted(self.links)]


def test_a_request_that_ends_an_engine_takes_its_neighbours_with_it_once() -> None:
    """Sent again, each that was in it has an engine to itself: they are answered, and it alone is refused."""
    engines = Engines(ScriptedLink(), ScriptedLink())
    engines.links[1].is_full = True
    engines.add("a", "killer", "b")
    engines.links[1].is_full = False
    engines.end(0)
    engines.add("b", "killer", "a")
    assert engines.has.count([]) == 1
    assert ["b"] in engines.has
    engines.add("c", "d", "e")  # others have the other engine
    assert sorted(engines.has) == [["b"], ["c", "d", "e"]]
    engines.finish("b")
    assert sorted(engines.has) == [["c", "d", "e"], ["killer"]]
    engines.end(engines.has.index(["killer"]))
    assert sorted(engines.has) == [["a"], ["c", "d", "e"]]
    engines.finish("a")
    with pytest.raises(PromptError, match="had this request, one of them while it had no other"):
        engines.add("killer")
    engines.add("killer", seed=3)  # which is another request
    engines.add("a", "b", "f")
    assert not engines.refused
    assert all(engines.has)  # all have both engines again


def test_a_suspect_waits_for_an_engine_without_requests_and_others_wait_for_it() -> None:
    """Where there is one engine alone; those that came first go on, and those that wait go before the next suspect."""
    engines = Engines(ScriptedLink())
    engines.add("a", "b")
    engines.end(0)
    engines.add("c", "a", "b", "d")
    assert engines.has == [["c"]]
    engines.finish("c")
    assert engines.has == [["a"]]
    engines.finish("a")
    assert engines.has == [["d"]]
    engines.finish("d")
    assert engines.has == [["b"]]
    engines.placing.drop("b")  # its client left; the engine may still end with it
    engines.add("e")
    assert engines.has == [["b"]]
    engines.finish("b")
    assert engines.has == [["e"]]


def test_one_that_ends_engines_is_found_out_though_its_client_leaves() -> None:
    """The engine may end with it as long as it has not said that it has ended; that it was aborted clears none."""
    engines = Engines(ScriptedLink())
    engines.add("a", "killer")
    engines.placing.drop("killer")
    engines.end(0)
    engines.add("killer", "a")
    assert engines.has == [["killer"]]
    engines.placing.abort("killer")
    engines.finish("killer")
    engines.finish("a")
    engines.add("killer", "b")
    assert engines.has == [["killer"]]  # still a suspect
    engines.placing.drop("killer")
    engines.end(0)
    with pytest.raises(PromptError, match="had this request, one of them while it had no other"):
        engines.add("killer")
    engines.add("c", "a")
    assert engines.has == [["a", "c"]]
    engines.placing.drop("c")
    engines.finish("a", "c")
    assert not any((engines.placing._prints, engines.placing._left, engines.placing._to_abort))


def test_a_request_that_waits_is_a_suspect_once_an_equal_one_was_in_an_engine_that_ended() -> None:
    """It is given to no engine with others, and to none if it ends them."""
    engines = Engines(ScriptedLink(is_full=True), ScriptedLink())
    engines.add("x")
    engines.links[0].is_full, engines.links[1].is_full = False, True
    engines.add("a")
    engines.links[0].is_full = True
    for name in ("b", "c"):
        engines.placing.add(Request(name, ProcessedPrompt(None, [*b"a"], []), SamplingParams(), None, 0.0))
    engines.add("d")
    engines.end(0)
    assert engines.has == [["d"], ["x"]]
    engines.finish("d")
    assert engines.has == [["b"], ["x"]]
    engines.end(0)
    assert engines.has == [[], ["x"]]
    assert engines.refused.keys() == {"c"}


def test_the_last_of_several_engines_is_not_for_suspects() -> None:
    """While another one is being started."""
    engines = Engines(ScriptedLink(), awaits_engines=True)
    engines.add("a")
    engines.end(0)
    engines.add("a", "b")
    assert engines.has == [["b"]]
    engines.links[1] = ScriptedLink()
    engines.placing.place()
    assert engines.has == [["b"], ["a"]]


def test_no_suspect_goes_to_an_engine_that_may_hang_in_what_was_aborted() -> None:
    engines = Engines(ScriptedLink())
    engines.add("a")
    engines.end(0)
    engines.add("b")
    engines.placing.drop("b")
    engines.add("a")
    assert engines.has == [["b"]]
    assert engines.placing.num_waiting == 1  # so that it is ended, if it does
    engines.finish("b")
    assert engines.has == [["a"]]


def test_no_request_goes_to_an_engine_that_may_hang_while_another_one_is_full() -> None:
    """It waits; only where all may hang, one gets it."""
    engines = Engines(ScriptedLink(), ScriptedLink())
    engines.links[0].seconds_silent, engines.links[1].is_full = 60.0, True
    engines.add("a")
    assert engines.has == [[], []]
    engines.links[1].seconds_silent = 60.0
    engines.placing.place()
    assert engines.has == [["a"], []]


def test_requests_that_wait_are_run_in_an_engine_that_is_started_again() -> None:
    """They had no part in the end of the only one; those that it had are told."""
    engines = Engines(ScriptedLink(), awaits_engines=True)
    engines.add("a", "b")
    link = engines.links.pop(0)
    engines.placing.note_end(link.has)
    with pytest.raises(EngineLostError, match="no engine serves now"):
        engines.add("a")
    engines.links[0] = ScriptedLink(is_full=True)
    engines.add("c", "d")
    engines.add("a")
    engines.placing.drop("d")
    engines.links.clear()
    engines.placing.place()
    engines.links[0], engines.awaits_engines = ScriptedLink(), False
    engines.placing.place()
    assert (engines.has, engines.refused) == ([["c"]], {})
    engines.finish("c")
    assert engines.has == [["a"]]


def test_requests_that_wait_are_told_that_no_engine_is_left() -> None:
    """Those that engines had no room for, and suspects."""
    engines = Engines(ScriptedLink())
    engines.add("a")
    engines.end(0)
    engines.links[0].is_full = True
    engines.add("b")
    engines.add("a")
    assert engines.placing.num_waiting == 1  # the suspect has an engine without requests
    assert engines.has == [["a"]]
    engines.links.clear()
    engines.placing.place()
    assert engines.refused.keys() == {"b"}
    with pytest.raises(EngineLostError, match="no engine serves now"):
        engines.add("c")


def test_a_request_that_waits_is_aborted_by_the_engine_that_gets_it() -> None:
    """Which says so; one that no one reads goes to none."""
    full = ScriptedLink()
    full.is_full = True
    engines = Engines(full)
    engines.add("a", "b")
    engines.placing.abort("a")
    engines.placing.drop("b")
    full.is_full = False
    engines.placing.place()
    assert engines.has == [["a"]]
    assert full.ended == ["a"]


def test_a_request_that_is_aborted_as_it_changes_engines_is_aborted_by_the_next_one() -> None:
    """While none has it, and it waits for none."""
    engines = Engines(ScriptedLink())
    engines.add("a")
    request = Request("a", ProcessedPrompt(None, [*b"a"], []), SamplingParams(), None, 0.0)
    engines.placing.abort("a")
    engines.placing.add_again(request)  # which the one before gave back
    assert engines.links[0].ended == ["a"]


def test_a_client_that_leaves_as_its_request_changes_engines_ends_it() -> None:
    """No engine has it then, and none gets it; else the next one does, also where one has just ended."""
    engines = Engines(ScriptedLink(has_ended=True), ScriptedLink(has_ended=True))
    engines.add("a", "b")
    engines.placing.drop("a")
    engines.end(0)
    assert sorted(engines.has) == [[], ["b"]]
    request = Request("a", ProcessedPrompt(None, [1], []), SamplingParams(), None, 0.0)
    engines.placing.add_again(request)
    assert sorted(engines.has) == [[], ["b"]]


def test_a_request_is_counted_while_it_is_being_sent() -> None:
    """Whenever the thread that sends takes it: an engine that has one is no engine for a suspect."""
    link: Any = SendingLink.__new__(SendingLink)
    link._changed, link._current, link._jobs = threading.Condition(), None, [_Job(print, print, "a")]

    class Requests(dict[str, Any]):
        """Those that were sent; the thread takes the next one just before they are counted."""

        def __len__(self) -> int:
            if link._jobs:
                link._current = link._jobs.pop()
            return super().__len__()

    link._requests = Requests()
    assert link.num_requests == 1
    assert link.num_requests == 1
    link._requests["a"] = None
    assert link.num_requests == 1
    link._current = None
    assert link.num_requests == 1


def test_suspects_are_those_that_no_engine_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """By tokens, items, salt, adapter and parameters; for a while."""

    def prompt(
        *token_ids: int, salt: str | None = None, image: str | None = None, extra: Any = None, **params: Any
    ) -> bytes:
        features: Any = [] if image is None else [SimpleNamespace(identifier=image)]
        made = ProcessedPrompt(None, list(token_ids), features, salt, extra=extra or {})
        return print_of(made, SamplingParams(**params))

    prints = [
        prompt(1), prompt(2), prompt(1, 2), prompt(1, salt="a"), prompt(1, image="a"), prompt(1, image="b"),
        prompt(1, extra={"lora": {"name": "a"}}), prompt(1, max_tokens=3), prompt(1, stop=["a"]),
    ]  # fmt: skip
    assert len(set(prints)) == len(prints)
    assert prompt(1, output_kind=RequestOutputKind.DELTA) == prints[0]
    known = Suspects()
    known.note(prints[:1], is_alone=True)  # which may have been anything
    known.note(prints[:2], is_alone=False)
    known.check(prints[0])
    known.clear(prints[1])
    known.note([prints[1]], is_alone=True)
    known.check(prints[1])
    known.note([prints[0]], is_alone=True)
    known.note(prints[:2], is_alone=False)
    with pytest.raises(PromptError, match="one of them while it had no other"):
        known.check(prints[0])
    known.check(prints[1])
    now = time.monotonic()
    monkeypatch.setattr("corellm_server.suspects.time.monotonic", lambda: now + 700)
    known.check(prints[0])
    assert prints[0] not in known


def test_an_engine_that_is_started_again_calls_what_the_others_have_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it has requests; of one name the last call only. Also one of which it is told later."""
    told: list[Any] = []
    link = SimpleNamespace(
        wait_until_ready=lambda: told.append("ready"), start_reading=lambda *_: told.append("serves"),
        call=lambda future, function, arguments: told.append((function, arguments)), is_full=False, num_requests=0,
    )  # fmt: skip
    monkeypatch.setattr(group.EngineGroup, "_begin", lambda *_: link)
    shares: list[Any] = [SimpleNamespace(number=0)]
    engines = group.EngineGroup({}, shares, ["cpu"], 0.0)
    engines._deliver = engines._report_end = lambda *_: None
    client: Any = SimpleNamespace(group=engines)
    for arguments in ((1,), (2, "a")):
        DataParallelLLM.repeat_in_new_engines(client, "adapters", plain_metrics, *arguments)
    engines._start_again(0, 0.0)
    assert told == ["ready", (name_of(plain_metrics), (2, "a")), "serves"]
    DataParallelLLM.repeat_in_new_engines(client, "adapters", plain_metrics, 3)  # of a call before it served
    assert told[3:] == [(name_of(plain_metrics), (3,))]


def test_an_engine_that_ends_soon_is_always_tried_again() -> None:
    """Less and less often, but within a minute; at once, if it served for a while."""
    pauses = list(accumulate(range(9), lambda waited, _: pause(5.0, waited), initial=0.0))
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert pause(100.0, 60.0) == 0


def test_lines_of_the_log_say_the_engine() -> None:
    """An engine's own lines, among several."""
    record = logging.makeLogRecord({"name": "corellm", "levelname": "INFO", "msg": "loaded"})
    assert json.loads(JsonFormatter(1).format(record))["engine"] == 1
    assert "engine" not in json.loads(JsonFormatter().format(record))


def test_cores_are_divided_by_node_and_core(tmp_path: Path) -> None:
    """Threads of one core stay together, and those of one node; a quota divides threads."""
    for node, cpus in enumerate(("0-1,4-5", "2-3,6-7")):
        (tmp_path / "node" / f"node{node}").mkdir(parents=True)
        (tmp_path / "node" / f"node{node}" / "cpulist").write_text(cpus + "\n")
    for cpu in range(8):
        folder = tmp_path / "cpu" / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    assert in_order(range(8), tmp_path) == [0, 4, 1, 5, 2, 6, 3, 7]
    assert in_order({6, 1, 2}, tmp_path) == [1, 2, 6]
    assert in_order({3, 1}, tmp_path / "none") == [1, 3]


def test_shares_are_disjoint_and_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every processor is one engine's; threads are as many as a quota grants."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(7)))
    shares = shares_of(3, tmp_path)
    assert sorted(cpu for share in shares for cpu in share.cpus) == list(range(7))
    assert [(share.number, share.parts, len(share.cpus), share.num_threads) for share in shares] == [
        (0, 3, 2, 2), (1, 3, 3, 2), (2, 3, 2, 2),
    ]  # fmt: skip
    monkeypatch.setattr("corellm_server.data_parallel.division.usable_cpus", lambda: 4)
    assert [share.num_threads for share in shares_of(3, tmp_path)] == [1, 1, 2]
    with pytest.raises(ConfigError, match=r"data_parallel_size.* is 5: this process may use 4 processors.*at most 4"):
        shares_of(5, tmp_path)


def test_each_engine_has_a_gpu_or_all_have_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` takes GPUs if there are some; one that is named is not enough."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert devices_of(3, "auto") == devices_of(3, "cpu") == ["cpu"] * 3
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert devices_of(2, "auto") == devices_of(2, "cuda") == ["cuda:0", "cuda:1"]
    with pytest.raises(ConfigError, match="sees 2 GPUs"):
        devices_of(3, "auto")
    with pytest.raises(ConfigError, match="is one device"):
        devices_of(2, "cuda:1")
