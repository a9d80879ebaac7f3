"""Sleep and other weights over HTTP, with an engine in its own process: off by default, and no request is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from corellm import LLM, SamplingParams
from corellm.errors import AbsentMethodError, ConfigError
from corellm.serving import ProcessLLM
from corellm_server.endpoints.sleep import sleep_routes
from corellm_server.errors import timed_out
from corellm_server.options import ServerOptions
from extensions.server.tests.conftest import MODEL, Running, serving
from tests.fixtures import wait_until

TEXT = "USER: How many? ASSISTANT:"
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 200}


@pytest.fixture(scope="module")
def checkpoints(make_llava: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trainer's directory with two checkpoints, and one beside it that it must not name."""
    folder = tmp_path_factory.mktemp("trainer")
    for seed, name in enumerate(("runs/first", "runs/second", "apart")):
        shutil.copytree(make_llava(seed=seed % 2), folder / name)
    (folder / "runs" / "out").symlink_to(folder / "apart")
    (folder / "runs" / "loop").symlink_to("loop")
    for name in ("empty", "linked", "indexed"):
        (folder / "runs" / name).mkdir()
    (folder / "runs" / "linked" / "model.safetensors").symlink_to(folder / "apart" / "model.safetensors")
    index = '{"weight_map": {"a": "../../apart/model.safetensors"}}'
    (folder / "runs" / "indexed" / "model.safetensors.index.json").write_text(index)
    return folder / "runs"


@pytest.fixture(scope="module")
def wanted(checkpoints: Path) -> list[str]:
    """The text that each generates."""
    params, texts = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True), []
    for name in ("first", "second"):
        with LLM(checkpoints / name, **OPTIONS) as llm:
            texts.append(llm.generate(TEXT, params, use_tqdm=False)[0].outputs[0].text)
    assert texts[0] != texts[1]
    return texts


@pytest.fixture(scope="module")
def server(checkpoints: Path) -> Iterator[Running]:
    llm = ProcessLLM(str(checkpoints / "first"), **OPTIONS)
    try:
        with serving(llm, enable_sleep_mode=True, allowed_weights_path=str(checkpoints), max_queue=2) as running:
            yield running
    finally:
        llm.close()


def completed(server: Running) -> str:
    body = {"prompt": TEXT, "max_tokens": 12, "temperature": 0, "ignore_eos": True, "model": MODEL}
    response = server.post("/v1/completions", body)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def metric(server: Running, name: str) -> float:
    line = next(line for line in server.get("/metrics").text.splitlines() if line.startswith(f"corellm:{name} "))
    return float(line.split()[1])


@pytest.mark.parametrize("level", [1, 2])
def test_requests_wait_until_it_wakes(server: Running, wanted: list[str], level: int) -> None:
    """As many as the queue holds: one more is told to come again, and a full queue does not keep the model asleep."""
    assert server.get("/is_sleeping").json() == {"is_sleeping": False}
    assert server.post(f"/sleep?level={level}").status_code == 200
    assert server.get("/is_sleeping").json() == {"is_sleeping": True}
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(completed, server) for _ in range(2)]
        wait_until(lambda: metric(server, "num_requests_waiting") == 2)
        assert metric(server, "is_sleeping") == 1
        assert server.get("/health").status_code == server.get("/ready").status_code == 200
        assert server.post("/v1/completions", {"prompt": TEXT, "model": MODEL}).status_code == 503
        assert server.post("/wake_up?tags=weights").status_code == 200
        assert server.get("/is_sleeping").json() == {"is_sleeping": True}
        assert server.post("/wake_up?tags=weights,kv_cache").status_code == 200
        assert [one.result() for one in waiting] == wanted[:1] * 2
    assert metric(server, "is_sleeping") == 0


def test_weights_come_from_a_directory(server: Running, wanted: list[str]) -> None:
    """There and back, awake and asleep; what cannot be is told, and changes nothing."""
    assert server.post("/update_weights?directory=second").status_code == 200
    assert completed(server) == wanted[1]
    server.post("/sleep?level=2")
    assert server.post("/update_weights?directory=first").status_code == 200
    server.post("/wake_up")
    assert completed(server) == wanted[0]
    for path in ("third", "../apart", "out", "/", "empty", "loop", "a\0b", "x" * 300, "linked", "indexed"):
        response = server.post("/update_weights", params={"directory": path})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "directory")
    assert completed(server) == wanted[0]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("/sleep?level=3", "level must be 1"),
        ("/sleep?level=x", "level"),
        ("/sleep?lvl=2", "'lvl' is no argument of this URL; it takes level"),
        ("/wake_up?tags=cache", "weights"),
        ("/update_weights", "directory"),
    ],
)
def test_wrong_arguments_are_told(server: Running, url: str, says: str) -> None:
    response = server.post(url)
    assert response.status_code == 400
    assert says in response.json()["error"]["message"]
    assert server.get("/is_sleeping").json() == {"is_sleeping": False}


def test_a_level_in_a_body_is_told(server: Running) -> None:
    """It would be passed over, and the model sleep at another level."""
    response = server.post("/sleep", {"level": 2})
    assert response.status_code == 400
    assert "takes no body" in response.json()["error"]["message"]
    assert server.get("/is_sleeping").json() == {"is_sleeping": False}


def test_a_request_that_waits_too_long_is_told_that_the_model_sleeps(llm: Any) -> None:
    """Else it would look for what is wrong with the request; awake, it is told its time alone."""
    with serving(llm, enable_sleep_mode=True) as running:
        assert running.post("/sleep").status_code == 200
        options = running.service.config.options
        object.__setattr__(options, "request_timeout", 0.5)  # of what is waiting alone
        response = running.post("/v1/completions", {"prompt": TEXT, "model": MODEL})
        object.__setattr__(options, "request_timeout", 3600.0)
        assert running.post("/wake_up").status_code == 200
        assert response.status_code == 503
        assert "0.5 s allowed: the model sleeps" in response.json()["error"]["message"]
    assert timed_out(0.5).message.endswith("0.5 s allowed")


def test_it_is_off_unless_it_is_allowed(running: Running, llm: Any, checkpoints: Path) -> None:
    """Each by an option of its own; with keys, only for those who have one."""
    for path, option in (
        ("/sleep", "--enable-sleep-mode"),
        ("/wake_up", "--enable-sleep-mode"),
        ("/update_weights?directory=x", "--allowed-weights-path"),
        ("/v1/load_lora_adapter", "--allow-runtime-lora-updating"),
    ):
        response = running.post(path)
        assert response.status_code == 404
        assert option in response.json()["error"]["message"]
    assert running.get("/is_sleeping").status_code == 404
    with serving(llm, enable_sleep_mode=True, api_key=["secret"]) as guarded:
        key = {"Authorization": "Bearer secret"}
        assert guarded.post("/sleep").status_code == 401
        assert guarded.post("/update_weights?directory=first", headers=key).status_code == 404
        assert guarded.get("/is_sleeping", headers=key).json() == {"is_sleeping": False}
    with pytest.raises(ConfigError, match="allowed_weights_path: there is no directory"):
        ServerOptions(allowed_weights_path=str(checkpoints / "none"))


@pytest.mark.parametrize("options", [{"enable_sleep_mode": True}, {"allowed_weights_path": "."}], ids=str)
def test_without_the_extension(llm: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    """A server whose options ask for it does not start, and says what to install."""
    monkeypatch.setattr("corellm.plugin.calls.call_extensions", lambda *_, **__: iter(()))
    service: Any = SimpleNamespace(client=llm, config=SimpleNamespace(options=ServerOptions(**options)))
    with pytest.raises(AbsentMethodError, match=r"pip install \./extensions/training"):
        sleep_routes(service)
