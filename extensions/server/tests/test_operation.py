"""What operators turn on: TLS, origins of web pages, a path behind a proxy, ids and logs."""

from __future__ import annotations

import json
import logging
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from corellm import AsyncLLM
from corellm.cli import main
from corellm.system.log_format import JsonFormatter, start_line
from extensions.server.tests.conftest import MODEL, Running, chat, serving, user
from extensions.server.tests.fetching.hosts import CERTIFICATE
from tests.fixtures import wait_until

CHAT = "/v1/chat/completions"
PAGE = "https://page.example"


# --- TLS ------------------------------------------------------------------------------------------------------------


def test_https(llm: AsyncLLM) -> None:
    """OpenAI's client checks the certificate, and streams; plain HTTP gets nothing."""
    trust = ssl.create_default_context(cafile=CERTIFICATE)
    trust.check_hostname = False  # the certificate is of media.test
    with serving(llm, ssl_certfile=str(CERTIFICATE), ssl_keyfile=str(CERTIFICATE)) as running:
        assert running.url.startswith("https://")
        with httpx.Client(verify=trust) as http, openai.OpenAI(
            base_url=running.url + "/v1", api_key="x", http_client=http, max_retries=0
        ) as client:  # fmt: skip
            whole = client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "x"}], max_tokens=4
            )
            assert whole.usage is not None
            assert whole.usage.completion_tokens > 0
            stream = client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "x"}], max_tokens=4, stream=True
            )
            assert [chunk.choices[0].finish_reason for chunk in stream][-1]
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(running.url + "/health")
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(running.url.replace("https", "http") + "/health")


@pytest.fixture
def other_key(tmp_path: Path) -> Path:
    """A private key that is not the certificate's."""
    path = tmp_path / "other.pem"
    subprocess.run(
        ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", path], check=True
    )
    return path


def test_a_certificate_that_cannot_be_used(other_key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused before a model is loaded, in one line with the files' names; no password is asked for."""
    locked, text = tmp_path / "locked.pem", tmp_path / "text.pem"
    subprocess.run(
        ["openssl", "pkey", "-in", other_key, "-aes256", "-passout", "pass:secret", "-out", locked], check=True
    )
    text.write_text("no key")
    for key, told in (
        (other_key, "another certificate"), (text, "not a certificate"),
        (locked, "password"), (tmp_path / "none.pem", "ssl_keyfile"),
    ):  # fmt: skip
        assert main(["serve", "demo", "--ssl-certfile", str(CERTIFICATE), "--ssl-keyfile", str(key)]) == 1
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1


# --- web pages ------------------------------------------------------------------------------------------------------


@pytest.fixture
def page(llm: AsyncLLM) -> Iterator[Running]:
    """A server with a key, that a page may use."""
    with serving(llm, api_key="key", cors_origins=PAGE) as running:
        yield running


def test_a_pages_requests(page: Running) -> None:
    """It may send what OpenAI's client for browsers sends, and read responses, the gate's errors among them."""
    asked = "authorization,content-type,x-stainless-lang,x-stainless-retry-count"
    preflight = httpx.options(
        page.url + CHAT, headers={"Origin": PAGE, "Access-Control-Request-Method": "POST",
                                  "Access-Control-Request-Headers": asked},
    )  # fmt: skip
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == PAGE
    assert set(asked.split(",")) <= set(preflight.headers["access-control-allow-headers"].lower().split(","))
    key = {"Authorization": "Bearer key"}
    for response, status in (
        (page.post(CHAT, chat(user("x")), headers={"Origin": PAGE, **key}), 200),
        (page.post(CHAT, {}, headers={"Origin": PAGE, **key}), 400),
        (page.post(CHAT, chat(user("x")), headers={"Origin": PAGE}), 401),
        (page.get("/nowhere", headers={"Origin": PAGE, **key}), 404),
    ):
        assert response.status_code == status
        assert response.headers["access-control-allow-origin"] == PAGE
        assert "access-control-allow-credentials" not in response.headers
        assert "x-request-id" in response.headers["access-control-expose-headers"].lower()


def test_other_pages(page: Running, running: Running) -> None:
    """They get no permission, by a preflight or without; nor does any page where no origin is allowed."""
    for server, origin in ((page, "https://other.example"), (page, PAGE + ".other.example"), (running, PAGE)):
        headers = {"Origin": origin, "Access-Control-Request-Method": "POST", "Authorization": "Bearer key"}
        for response in (httpx.options(server.url + CHAT, headers=headers), server.get("/health", headers=headers)):
            assert "access-control-allow-origin" not in response.headers
        assert httpx.options(server.url + CHAT, headers=headers).status_code in (400, 405)


def test_all_pages(llm: AsyncLLM) -> None:
    """With `*`, and still without credentials."""
    with serving(llm, cors_origins="*") as running:
        response = running.get("/health", headers={"Origin": PAGE, "Cookie": "a=b"})
        assert response.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in response.headers


# --- behind a proxy -------------------------------------------------------------------------------------------------


def test_a_path_behind_a_proxy(llm: AsyncLLM) -> None:
    """Both with the proxy's prefix and without; programs that read the OpenAPI document find the prefix there."""
    with serving(llm, root_path="/llm") as running:
        assert running.url.endswith("/llm")
        bare = running.url.removesuffix("/llm")
        assert running.get("/openapi.json").json()["servers"] == [{"url": "/llm"}]
        for url in (running.url, bare):
            assert httpx.get(url + "/v1/models").status_code == 200
            assert httpx.post(url + CHAT, json=chat(user("x")), timeout=600).status_code == 200
        assert httpx.get(bare + "/llmx/v1/models").status_code == 404


# --- ids and logs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["mine", "a.b:c-d_1", "x" * 128, "", "x" * 129, "two words", "\u00fc"])
def test_request_ids(running: Running, given: str) -> None:
    """A sane one is returned, in errors too; any other is replaced by a new one."""
    sent = {"X-Request-Id": given.encode()}
    is_sane = given in ("mine", "a.b:c-d_1", "x" * 128)
    found = [
        running.post(CHAT, chat(user("x")), headers=sent), running.get("/nowhere", headers=sent),
        running.post(CHAT, chat(user("x"), stream=True), headers=sent), running.post(CHAT, {}, headers=sent),
    ]  # fmt: skip
    ids = [response.headers["x-request-id"] for response in found]
    assert all(ids)
    assert set(ids) == {given} if is_sane else len(set(ids)) == 4
    assert is_sane or given not in ids


def test_logs(llm: AsyncLLM, caplog: pytest.LogCaptureFixture) -> None:
    """A line per request, for programs or people, without content; none for probes. Never the key, but its number."""
    caplog.set_level(logging.INFO, "corellm_server.logs")

    def records() -> list[logging.LogRecord]:
        """Return those of this test's requests: one of another server's may end after its client has the response."""
        return [record for record in caplog.records if "of-logs" in record.getMessage()]

    def headers(name: str, key: str = "second-key") -> dict[str, str]:
        return {"X-Request-Id": f"{name}-of-logs", "Authorization": f"Bearer {key}"}

    with serving(llm, api_key=["first-key", "second-key"]) as running:
        running.get("/health", headers=headers("probe"))
        running.post(CHAT, chat(user("my private words")), headers=headers("first"))
        running.post("/v1/none", {"secret": 1}, headers=headers("second", "wrong-key"))
        wait_until(lambda: len(records()) == 2)
    first, second = (json.loads(JsonFormatter().format(record)) for record in records())
    assert first.pop("seconds") > 0
    assert first.pop("prompt_tokens") > 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {
        "level": "info", "logger": "corellm_server.logs", "request_id": "first-of-logs", "client": "127.0.0.1",
        "key": 2, "route": CHAT, "status": 200, "outcome": "ok", "output_tokens": 6,
    }  # fmt: skip
    assert second["status"] == 401
    assert "key" not in second
    text = records()[0].getMessage()
    assert text.startswith(f"request_id=first-of-logs client=127.0.0.1 key=2 route={CHAT} status=200 outcome=ok ")
    assert not any(word in caplog.text for word in ("private", "secret", "first-key", "second-key", "wrong-key"))


FAILURES = """
import asyncio, threading
from corellm.system.log_format import set_up_log

class Unraisable:
    def __del__(self):
        raise ValueError("of a destructor")

def fail(error):
    raise error

async def forget():
    asyncio.get_running_loop().call_soon(fail, ValueError("of the event loop"))
    await asyncio.sleep(0)

set_up_log("INFO", as_json=True)
for error in (ValueError("of a thread"), SystemExit("which ends a thread in peace")):
    thread = threading.Thread(target=fail, args=[error], name="corellm-test")
    thread.start()
    thread.join()
Unraisable()
asyncio.run(forget())
fail(ValueError("of the main thread"))
"""


def test_tracebacks_are_json() -> None:
    """Wherever an error ends that nothing catches: a thread, a destructor, the event loop, the process."""
    ended = subprocess.run([sys.executable, "-c", FAILURES], capture_output=True, text=True, timeout=600)
    rows = [json.loads(row) for row in ended.stderr.splitlines()]
    assert [row["exception"].splitlines()[-1] for row in rows] == [
        f"ValueError: of {place}" for place in ("a thread", "a destructor", "the event loop", "the main thread")
    ]
    assert "corellm-test" in rows[0]["message"]
    assert "Unraisable.__del__" in rows[1]["message"]
    assert ended.returncode == 1


def test_each_line_of_the_log_is_json() -> None:
    """Whatever is logged: several lines, what is no text, an exception."""
    try:
        raise ValueError("a\nb")
    except ValueError:
        failed = sys.exc_info()
    record = logging.LogRecord("x", logging.WARNING, "f.py", 1, "%s \n\u2028 %r", ("a", b"\xff"), failed)
    line = JsonFormatter().format(record)
    assert len(line.splitlines()) == 1
    told = json.loads(line)
    assert (told["level"], told["message"]) == ("warning", "a \n\u2028 b'\\xff'")
    assert "ValueError: a\nb" in told["exception"]
    started = json.loads(start_line("it listens", as_json=True))
    assert (started["level"], started["message"]) == ("info", "it listens")
