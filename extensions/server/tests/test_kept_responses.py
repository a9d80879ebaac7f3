"""Responses that are kept, through OpenAI's own client: conversations, retrieval, background work, bounds, faults."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response

from corellm import AsyncLLM
from corellm.errors import ConfigError
from corellm_server.kept.table import ResponseTable, Row
from extensions.server.tests.conftest import MODEL, Running, data_url, in_engine, serving
from extensions.server.tests.scripted import ScriptedLLM
from extensions.server.tests.test_promises import assert_serves, error_of
from extensions.server.tests.test_responses import EVENT, ON, PATH, ask, events_of, image
from extensions.server.tests.tools.conftest import loaded as loaded  # a fixture
from extensions.server.tests.tools.test_tools_in_responses import FLAT
from tests.fixtures import wait_until

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Bari"}}</tool_call>'


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return str(tmp_path / "kept.db") if request.param == "file" else None


@pytest.fixture(scope="module")
def scripted(loaded: AsyncLLM) -> ScriptedLLM:
    return ScriptedLLM(loaded)


@pytest.fixture
def running(llm: AsyncLLM, store: str | None) -> Iterator[Running]:
    with serving(llm, responses_store=store) as server:
        yield server


def created(running: Running, *given: Any, **fields: Any) -> dict[str, Any]:
    """A response of six tokens."""
    response = running.post(PATH, ask(*given, ignore_eos=True, **fields))
    assert response.status_code == 200, response.text
    return dict(response.json())


def sight(seed: int, side: int) -> list[dict[str, Any]]:
    """A turn with a square of noise, whose bytes are three times its pixels, or more."""
    part = {"type": "input_image", "image_url": data_url(seed, side, side), "detail": "auto"}
    return [{"role": "user", "content": [part, "see"]}]


def text_of(response: dict[str, Any]) -> str:
    return str(response["output"][0]["content"][0]["text"])


class Stalled:
    """An engine that makes no step while this is entered."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm, self._end = llm, threading.Event()

    def __enter__(self) -> None:
        in_engine(self._llm, lambda _: self._end.wait(600))

    def __exit__(self, *_: object) -> None:
        self._end.set()


# --- conversations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_is_what_the_client_could_have_sent(running: Running, *, stream: bool) -> None:
    """Three turns, one with an image, have the outputs and tokens of the whole sent at once; no instructions stay."""
    create = running.client().responses.create
    turns: list[Any] = [
        "hello", [{"role": "user", "content": [image(1), {"type": "input_text", "text": "see"}]}], "go on",
    ]  # fmt: skip
    whole: list[Any] = []
    previous = None
    for number, turn in enumerate(turns):
        more: Any = {"instructions": "be brief"} if number == 0 else {}
        whole += [{"role": "user", "content": turn}] if isinstance(turn, str) else turn
        want = create(**ask(whole), store=False, extra_body=ON, **more)
        fields = {**ask(turn), "previous_response_id": previous, **more}
        if stream:
            *_, last = create(**fields, stream=True, extra_body=ON)
            got = last.response
        else:
            got = create(**fields, extra_body=ON)
        assert got.output_text == want.output_text != ""
        assert got.usage is not None
        assert want.usage is not None
        assert got.usage.input_tokens == want.usage.input_tokens
        assert (got.previous_response_id, got.instructions) == (previous, more.get("instructions"))
        assert (got.to_dict()["store"], want.to_dict()["store"]) == (True, False)
        whole += [item.to_dict() for item in want.output]
        previous = got.id
    assert previous is not None
    first = running.client().responses.retrieve(previous).previous_response_id
    other = create(**ask("something else"), previous_response_id=first, extra_body=ON)
    assert other.output_text != running.client().responses.retrieve(previous).output_text


def test_a_loop_of_tools(scripted: ScriptedLLM, store: str | None) -> None:
    """Calls and reasoning stay in the conversation; only the result is sent, here with an image."""
    with serving(scripted, responses_store=store) as running:
        create = running.client().responses.create
        scripted.outputs = [f"<think>Hm.</think>{CALL}", CALL.replace("Bari", "Bath"), "Rain."]
        got = create(model=MODEL, input="Which weather?", tools=FLAT)
        for result in ("sun", [{"type": "input_text", "text": "see"}, image(1)]):
            call: Any = got.output[-1]
            items: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": result}]
            got = create(model=MODEL, input=items, tools=FLAT, previous_response_id=got.id)
        assert got.output_text == "Rain."
        prompt = scripted.prompts[-1]
        text = prompt.text or ""
        places = [text.index(part) for part in ("Which weather?", "Bari", "sun", "Bath", "see")]
        assert places == sorted(places)
        assert len(prompt.features) == 1
        kinds = [item.type for item in running.client().responses.input_items.list(got.id, order="asc")]
        assert kinds == ["message", "reasoning", *["function_call", "function_call_output"] * 2]


def test_items_are_listed_in_pages(running: Running) -> None:
    """All that a response was made of, the newest first or the oldest, through the client's own pages."""
    first = created(running, "one")
    items: list[Any] = [
        {"role": "user", "content": [image(1), "two"], "id": "mine"}, {"role": "assistant", "content": "three"},
        {"role": "user", "content": "four", "id": "mine"},
    ]  # fmt: skip
    second = created(running, items, previous_response_id=first["id"])
    listed = running.client().responses.input_items.list
    found = [item.to_dict() for item in listed(second["id"], order="asc", limit=2)]
    texts = [item["content"][-1]["text"] for item in found]  # type: ignore[index]
    assert texts == ["one", text_of(first), "two", "three", "four"]
    assert [item["role"] for item in found] == ["user", "assistant", "user", "assistant", "user"]
    assert found[2]["content"][0]["image_url"] == image(1)["image_url"]  # type: ignore[index]
    assert found[2]["id"] == "mine"
    assert len({item["id"] for item in found}) == 5
    assert [item.to_dict() for item in listed(second["id"], limit=1)] == found[::-1]
    page = running.get(f"{PATH}/{second['id']}/input_items?limit=2").json()
    assert (page["first_id"], page["last_id"], page["has_more"]) == (found[4]["id"], found[3]["id"], True)
    for query, param in (("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order"), ("after=a", "after")):
        assert error_of(running.get(f"{PATH}/{second['id']}/input_items?{query}"), 400)["param"] == param


def test_what_is_retrieved_is_what_was_sent(running: Running) -> None:
    """Whole or streamed; until it is deleted; not with `store: false`."""
    responses = running.client().responses
    kept = created(running, "hello", metadata={"a": "b"})
    streamed = events_of(running.post(PATH, ask("hello", stream=True)).text)[-1]["response"]
    for response in (kept, streamed):
        found = responses.retrieve(response["id"]).to_dict()
        assert found == response
        assert found["store"] is True
    responses.delete(kept["id"])
    unkept = created(running, "hello", store=False)
    for id in (kept["id"], unkept["id"]):
        for call in (responses.retrieve, responses.delete, responses.cancel, responses.input_items.list):
            with pytest.raises(openai.NotFoundError, match=id):
                call(id)
        with pytest.raises(openai.BadRequestError, match=id) as caught:
            responses.create(**ask("x"), previous_response_id=id)
        assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")


# --- in the background ----------------------------------------------------------------------------------------------


def test_background(running: Running, llm: AsyncLLM) -> None:
    """Queued, in progress, then as it would have been; it cannot be gone on with before, and can after."""
    responses = running.client().responses
    want = created(running, "hello")
    with Stalled(llm):
        first = responses.create(**ask("hello"), background=True, extra_body=ON)
        assert (first.status, first.background, first.output) == ("queued", True, [])
        assert responses.retrieve(first.id).status == "queued"
        with pytest.raises(openai.BadRequestError, match="in progress"):
            responses.create(**ask("x"), previous_response_id=first.id)
        assert error_of(running.get(f"{PATH}/{first.id}?stream=true"), 400)["param"] == "stream"
    wait_until(lambda: responses.retrieve(first.id).status not in ("queued", "in_progress"))
    got = responses.retrieve(first.id).to_dict()
    Response.model_validate(got, strict=True)
    assert text_of(got) == text_of(want)
    assert (got["status"], got["background"], got["usage"]) == ("incomplete", True, want["usage"] | {
        "input_tokens_details": got["usage"]["input_tokens_details"]  # type: ignore[index]
    })  # fmt: skip
    assert created(running, "x", previous_response_id=first.id)["previous_response_id"] == first.id
    wait_until(lambda: len(running.service.intake) == 0)
    assert running.service.intake.num_bytes == 0


def test_background_streams_are_followed_by_several(running: Running, llm: AsyncLLM) -> None:
    """A client that leaves does not end it; it and others have all events, from any number on, also after the end."""
    client = running.client()
    stream = client.responses.create(**ask("hello", max_output_tokens=40), background=True, stream=True, extra_body=ON)
    first = next(iter(stream))
    assert first.type == "response.created"
    id = first.response.id
    with Stalled(llm):
        stream.close()
        follower = client.responses.retrieve(id, stream=True, starting_after=first.sequence_number)
    rest = [event.to_dict() for event in follower]
    wait_until(lambda: client.responses.retrieve(id).status == "incomplete")
    again = events_of(running.get(f"{PATH}/{id}?stream=true").text)
    assert again[1:] == rest
    kinds = [event["type"] for event in again]
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert kinds[-1] == "response.incomplete"
    assert [event["sequence_number"] for event in again] == list(range(len(again)))
    assert again[-1]["response"] == client.responses.retrieve(id).to_dict()
    late = running.get(f"{PATH}/{id}?stream=true&starting_after={len(again) - 2}").text
    assert '"response.incomplete"' in late
    assert late.count("event:") == 1
    assert running.get(f"{PATH}/{id}?stream=true&starting_after=99999999").text == "data: [DONE]\n\n"


def test_background_is_cancelled(running: Running, llm: AsyncLLM) -> None:
    """With the text so far; again it is the same; what was made for a client, or has ended, is not cancelled."""
    responses = running.client().responses
    stream = responses.create(**ask("hello", max_output_tokens=900), background=True, stream=True, extra_body=ON)
    for event in stream:
        if event.type == "response.output_text.delta":
            break
    with Stalled(llm):
        id = running.service.kept._runs.copy().popitem()[0]
        got = responses.cancel(id)
    assert (got.status, got.output[0].status) == ("cancelled", "incomplete")  # type: ignore[union-attr]
    assert event.delta in got.output_text  # type: ignore[union-attr]
    *_, last = stream
    EVENT.validate_python(last.to_dict(), strict=True)
    assert last.response == got  # type: ignore[union-attr]
    assert responses.cancel(id) == responses.retrieve(id) == got
    assert httpx.post(f"{running.url}{PATH}/{id}/cancel").json() == got.to_dict()  # without a content type
    with pytest.raises(openai.BadRequestError, match="did not complete"):
        responses.create(**ask("x"), previous_response_id=id)
    with pytest.raises(openai.BadRequestError, match="not made in the background"):
        responses.cancel(created(running, "hello")["id"])
    done = created(running, "hello", background=True)
    wait_until(lambda: responses.retrieve(done["id"]).status == "incomplete")
    assert responses.cancel(done["id"]).status == "incomplete"
    with Stalled(llm):
        deleted = created(running, "hello", background=True)["id"]
        responses.delete(deleted)
    error_of(running.get(f"{PATH}/{deleted}"), 404)
    wait_until(lambda: len(running.service.intake) == 0)


def test_the_end_of_the_server(llm: AsyncLLM, tmp_path: Path) -> None:
    """Background work fails with a reason; a file's responses are in the next server, also after a kill."""
    file = str(tmp_path / "kept.db")
    with serving(llm, responses_store=file) as running:
        kept = created(running, "hello")
        with Stalled(llm):
            unfinished = created(running, "hello", background=True, max_output_tokens=900)
            running.server.stop()
            wait_until(lambda: bool(running.statuses))
    assert (tmp_path / "kept.db").stat().st_mode & 0o77 == 0
    table = ResponseTable(file, max_kept=9, max_bytes=10**6, max_seconds=9)
    killed = "resp_" + "0" * 32
    table.put(Row(killed, "", None, "queued", b"[]", json.dumps({**unfinished, "id": killed}).encode()))
    with pytest.raises(ConfigError, match="another process"):
        ResponseTable(file, max_kept=9, max_bytes=10**6, max_seconds=9)
    table.close()
    with serving(llm, responses_store=file) as running:
        responses = running.client().responses
        assert responses.retrieve(kept["id"]).to_dict() == kept
        assert created(running, "x", previous_response_id=kept["id"])["status"] == "incomplete"
        for id, message in ((unfinished["id"], "shutting down"), (killed, "server ended")):
            failed = responses.retrieve(id)
            assert failed.error is not None
            assert (failed.status, message in failed.error.message) == ("failed", True)
            assert responses.cancel(id).status == "failed"


def test_a_background_response_ends_at_the_deadline(llm: AsyncLLM) -> None:
    """Like any request; it says so."""
    with serving(llm, request_timeout=0.5) as running, Stalled(llm):
        id = created(running, "hello", background=True, store=True)["id"]
        wait_until(lambda: running.get(f"{PATH}/{id}").json()["status"] == "failed")
        assert "0.5 s" in running.get(f"{PATH}/{id}").json()["error"]["message"]


# --- whose they are, and how many -----------------------------------------------------------------------------------


def test_keys_see_their_own(llm: AsyncLLM, store: str | None) -> None:
    """Another key's id is as good as none, also while the response is made."""
    with serving(llm, api_key=["one", "two"], responses_store=store) as running:
        own, other = running.client("one").responses, running.client("two").responses
        kept = own.create(**ask("hello"), extra_body=ON).id
        with Stalled(llm):
            live = own.create(**ask("hello"), background=True, extra_body=ON).id
            for id in (kept, live):
                for call in (other.retrieve, other.delete, other.cancel, other.input_items.list):
                    with pytest.raises(openai.NotFoundError):
                        call(id)
                with pytest.raises(openai.BadRequestError, match="another key"):
                    other.create(**ask("x"), previous_response_id=id)
            assert own.cancel(live).status == "cancelled"
        assert own.retrieve(kept).id == kept


def test_bounds_of_number_and_conversations(llm: AsyncLLM, store: str | None) -> None:
    """The one not used for longest gives way; going on is use; a conversation without its middle is refused."""
    with serving(llm, responses_max_kept=3, responses_store=store) as running:
        first = created(running, "one")["id"]
        middle = created(running, "two", previous_response_id=first)["id"]
        other = created(running, "other")["id"]
        last = created(running, "three", previous_response_id=middle)["id"]
        assert [running.get(f"{PATH}/{id}").status_code for id in (first, middle, other, last)] == [200, 200, 404, 200]
        running.client().responses.delete(middle)
        error = error_of(running.post(PATH, ask("x", previous_response_id=last)), 400)
        assert (error["param"], error["code"]) == ("previous_response_id", "previous_response_not_found")
        assert middle in error["message"]
        error_of(running.get(f"{PATH}/{last}/input_items"), 404)
        assert running.get(f"{PATH}/{last}").status_code == 200
        assert "corellm:kept_responses 2.0" in running.get("/metrics").text


def test_bounds_of_bytes(llm: AsyncLLM, store: str | None) -> None:
    """Images count; what is too large by itself says that it is not kept, and cannot be made in the background."""
    seen, large = sight(1, 40), sight(2, 90)
    size = len(json.dumps(seen))
    with serving(llm, responses_max_bytes=2 * size + 3000, responses_store=store) as running:
        ids = [created(running, seen)["id"] for _ in range(3)]
        assert [running.get(f"{PATH}/{id}").status_code for id in ids] == [404, 200, 200]
        for fields in ({}, {"stream": True}):
            response = running.post(PATH, ask(large, **fields))
            unkept = events_of(response.text)[-1]["response"] if fields else response.json()
            assert unkept["store"] is False
            error_of(running.get(f"{PATH}/{unkept['id']}"), 404)
        assert running.get(f"{PATH}/{ids[1]}").status_code == 200
        assert error_of(running.post(PATH, ask(large, background=True)), 400)["param"] == "input"
    with serving(llm, max_body_bytes=size + 2000) as running:
        first = created(running, seen)["id"]
        error = error_of(
            running.post(PATH, ask("x", previous_response_id=created(running, seen, previous_response_id=first)["id"])),
            400,
        )
        assert (error["param"], error["code"]) == ("previous_response_id", "request_too_large")


def test_bounds_of_age(llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old response is not found; one that was gone on with is younger."""
    with serving(llm, responses_max_seconds=100) as running:
        old, used = created(running, "one")["id"], created(running, "two")["id"]
        now = time.time()
        monkeypatch.setattr("corellm_server.kept.table.time.time", lambda: now + 60)
        created(running, "x", previous_response_id=used)
        monkeypatch.setattr("corellm_server.kept.table.time.time", lambda: now + 120)
        assert [running.get(f"{PATH}/{id}").status_code for id in (old, used)] == [404, 200]


def test_no_key_pushes_out_anothers() -> None:
    """Who has most makes way, whoever comes; the totals are those of the rows."""
    table = ResponseTable(None, max_kept=5, max_bytes=100, max_seconds=1e6)
    rows = [("quiet", 0, 10), *(("loud", number, 10) for number in range(1, 8)), ("large", 8, 60)]
    for owner, number, size in rows:
        table.put(Row(f"resp_{number}", owner, None, "completed", b"", b"x" * size))
    kept = {number for owner, number, _ in rows if table.get(f"resp_{number}", owner)}
    assert kept == {0, 5, 6, 7, 8}
    assert table.totals() == (5, 100)
    table.put(Row("resp_9", "quiet", None, "completed", b"", b"x" * 100))
    assert table.totals() == (1, 100)
    table.put(Row("resp_9", "quiet", None, "completed", b"", b"x" * 30))
    assert table.totals() == (1, 30)


def test_nothing_is_kept(llm: AsyncLLM) -> None:
    """By the operator's wish: requests are served, those that need it are refused."""
    with serving(llm, responses_max_kept=0) as running:
        assert created(running, "hello", store=True)["store"] is False
        for fields in ({"background": True}, {"previous_response_id": "resp_" + "0" * 32}):
            error = error_of(running.post(PATH, ask("x", **fields)), 400)
            assert error["param"] == next(iter(fields))
            assert "server" not in error["message"]  # `corellm batch` says it, too


def test_media_of_earlier_turns_are_not_fetched_again(llm: AsyncLLM) -> None:
    """A URL may have ended since, or have something else: the conversation goes on with what it had, the client's own.

    A URL that is sent again is fetched again, and so is one whose content gave way to others'.
    """
    fetched: list[str] = []

    async def fetch(url: str, *, kind: str) -> bytes:
        fetched.append(url)
        return b64decode(data_url(len(fetched)).partition(",")[2])

    def seen(url: str) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]

    one, other = "https://example.org/1", "https://example.org/2"
    with serving(llm, fetch, api_key=["a", "b"]) as running:

        def turn(key: str, given: Any, before: dict[str, Any] | None = None) -> dict[str, Any]:
            id = None if before is None else before["id"]
            headers = {"Authorization": f"Bearer {key}"}
            reply = running.post(PATH, ask(given, previous_response_id=id, max_output_tokens=2), headers=headers)
            assert reply.status_code == 200, reply.text
            answer: dict[str, Any] = reply.json()
            return answer

        first = turn("a", seen(one))
        second = turn("a", "and?", first)
        assert second["usage"]["input_tokens_details"]["cached_tokens"] > 0
        turn("a", seen(other), second)
        assert fetched == [one, other]
        turn("b", seen(one))
        turn("a", seen(one), second)
        assert fetched == [one, other, one, one]
        running.service.preparation._sources._fetched._max_bytes = 0
        turn("a", "and?", turn("a", seen(one)))
        assert fetched[4:] == [one, one]


# --- faults ---------------------------------------------------------------------------------------------------------


def test_hostile_ids(running: Running) -> None:
    """404 or 400 in OpenAI's shape, whatever the id is; the table is as it was."""
    kept = created(running, "hello")["id"]
    ids = ["resp_1", "x" * 5000, "' OR 1=1 --", "resp_%00", "%F0%9F%92%A9", "%2e%2e", kept + "%0a", kept.upper(), "%ff"]
    for id in ids:
        for method, rest in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
            with running.http() as client:
                error_of(client.request(method, f"{PATH}/{id.replace(' ', '%20')}{rest}"), 404)
        body = ask("x", previous_response_id=id)
        assert error_of(running.post(PATH, body), 400)["param"] == "previous_response_id"
    for wrong in (3, [kept], {"id": kept}):
        assert (
            error_of(running.post(PATH, ask("x", previous_response_id=wrong)), 400)["param"] == "previous_response_id"
        )
    for fields, param in (({"store": "yes"}, "store"), ({"background": True, "store": False}, "background")):
        assert error_of(running.post(PATH, ask("x", **fields)), 400)["param"] == param
    assert running.get(f"{PATH}/{kept}?starting_after=x").status_code == 400
    assert running.get(f"{PATH}/{kept}").status_code == 200
    assert_serves(running)


def test_a_disk_that_fails(llm: AsyncLLM, tmp_path: Path) -> None:
    """A clear error for the request that needed it, whole, streamed or in the background; others are served."""
    with serving(llm, responses_store=str(tmp_path / "kept.db")) as running:
        kept = created(running, "hello")["id"]
        with Stalled(llm):
            started = created(running, "hello", background=True, max_output_tokens=900)["id"]
        running.service.kept._table._db.execute("PRAGMA query_only = ON")  # as a disk that is mounted again to be read
        for more in ({}, {"background": True}):
            assert error_of(running.post(PATH, ask("hello", **more)), 500)["code"] == "store_failed"
        lines = running.post(PATH, ask("hello", stream=True)).text.splitlines()
        assert [line for line in lines if line.startswith("event:")][-2:] == ["event: error", "event: response.failed"]
        assert created(running, "hello", store=False)["status"] == "incomplete"
        assert running.get(f"{PATH}/{kept}").status_code == 200
        failed = running.client().responses.cancel(started)
        assert (failed.status, failed.error and "could not keep" in failed.error.message) == ("failed", True)
        assert_serves(running)


def test_what_is_deleted_is_not_in_the_file(tmp_path: Path) -> None:
    """Once the server has ended; what is kept is."""
    table = ResponseTable(str(tmp_path / "kept.db"), max_kept=9, max_bytes=10**6, max_seconds=9)
    for id in ("kept", "secret"):
        table.put(Row(id, "", None, "completed", b"[]", id.encode() * 2000))
    table.delete("secret", "")
    table.close()
    (file,) = tmp_path.iterdir()
    assert b"kept" * 100 in file.read_bytes()
    assert b"secret" not in file.read_bytes()


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    """Refused at the start, with the reason."""
    (tmp_path / "text.db").write_text("no database " * 100)
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE something (x)")
    other.close()
    wrongs = {
        "no/such/x.db": "no such directory",
        "text.db": "no database",
        "other.db": "another program",
        "": "opened",
    }
    for name, message in wrongs.items():
        with pytest.raises(ConfigError, match=message):
            ResponseTable(str(tmp_path / name), max_kept=1, max_bytes=1, max_seconds=1)


def test_a_file_that_others_can_read(tmp_path: Path) -> None:
    """As a copy that was brought back: refused, and left as it is."""
    file, bounds = tmp_path / "kept.db", {"max_kept": 1, "max_bytes": 1, "max_seconds": 1}
    ResponseTable(str(file), **bounds).close()
    ResponseTable(str(file), **bounds).close()
    file.chmod(0o640)
    with pytest.raises(ConfigError, match=r"other users can read it \(mode 640\).*chmod 600"):
        ResponseTable(str(file), **bounds)
    assert file.stat().st_mode & 0o777 == 0o640
