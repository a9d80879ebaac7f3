"""LoRA adapters over HTTP: each is a model of its own name, in every endpoint, with an engine in its own process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from corellm import LLM, AsyncLLM, LoRARequest, SamplingParams
from corellm.errors import ConfigError, InvalidParameterError
from corellm.serving import ProcessLLM
from corellm_server.adapters import ServedAdapters
from corellm_server.batch.running import batch_options
from corellm_server.errors import ApiError
from corellm_server.options import ServerOptions
from extensions.server.tests.conftest import MODEL, Running, serving

TEXT = "USER: How many? ASSISTANT:"
MESSAGES = [{"role": "user", "content": "How many?"}]
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 200, "enable_lora": True, "max_loras": 2}
NAMES = (MODEL, "first", "second")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two adapters with random factors for the tiny LLaVA."""
    made = {}
    for seed, name in enumerate(("first", "second")):
        folder, numbers = made.setdefault(name, tmp_path_factory.mktemp(name)), np.random.default_rng(seed)
        tensors = {}
        for layer in (0, 1):
            module = f"base_model.model.model.language_model.layers.{layer}.self_attn.q_proj"
            for factor, size in (("A", (4, 64)), ("B", (64, 4))):
                tensors[f"{module}.lora_{factor}.weight"] = numbers.standard_normal(size, dtype=np.float32)
        save_file(tensors, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 8}')
    return made


@pytest.fixture(scope="module")
def wanted(tiny_llava: Path, adapters: dict[str, Path]) -> dict[str, str]:
    """The texts that the model and each adapter generate."""
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with LLM(str(tiny_llava), **OPTIONS) as llm:
        requests = [None, *(LoRARequest(name, 1, str(path)) for name, path in adapters.items())]
        outputs = llm.generate([TEXT] * 3, params, use_tqdm=False, lora_request=requests)
        texts = [output.outputs[0].text for output in outputs]
    assert len(set(texts)) == 3
    return dict(zip(NAMES, texts, strict=True))


@pytest.fixture(scope="module")
def server(tiny_llava: Path, adapters: dict[str, Path]) -> Iterator[Running]:
    """A server with both."""
    llm = ProcessLLM(str(tiny_llava), **OPTIONS)
    try:
        with serving(llm, lora_modules=[f"{name}={path}" for name, path in adapters.items()]) as running:
            yield running
    finally:
        llm.close()


def completed(server: Running, name: str, **more: Any) -> Any:
    body = {"prompt": TEXT, "max_tokens": 12, "temperature": 0, "ignore_eos": True, "model": name, **more}
    return server.post("/v1/completions", body)


def text_of(response: Any) -> str:
    """The text of a chat, a message or a response."""
    if "choices" in response:
        return str(response["choices"][0]["message"]["content"])
    (part,) = response["content"] if "content" in response else response["output"][0]["content"]
    return str(part["text"])


def test_a_name_is_an_adapter(server: Running, wanted: dict[str, str]) -> None:
    """In completions, chats, Responses and Messages, whole and streamed; the name is told back."""
    for name in NAMES:
        response = completed(server, name).json()
        assert response["choices"][0]["text"] == wanted[name]
        assert response["model"] == name
    streamed = completed(server, "second", stream=True).text
    events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    assert "".join(event["choices"][0]["text"] for event in events) == wanted["second"]
    for path, length in (("/v1/chat/completions", "max_tokens"), ("/v1/messages", "max_tokens"),
                         ("/v1/responses", "max_output_tokens")):  # fmt: skip
        field = "input" if path == "/v1/responses" else "messages"
        texts = []
        for name in NAMES:
            body = {"model": name, field: MESSAGES, length: 12, "temperature": 0}
            response = server.post(path, body)
            assert response.status_code == 200
            texts.append(text_of(response.json()))
        assert len(set(texts)) == 3


def test_the_models_that_there_are(server: Running, wanted: dict[str, str]) -> None:
    """Adapters say which model they are for; another name is none."""
    listed = server.get("/v1/models").json()["data"]
    assert [(model["id"], model.get("parent")) for model in listed] == [
        (MODEL, None), ("first", MODEL), ("second", MODEL),
    ]  # fmt: skip
    assert server.get("/v1/models/second").json() == listed[2]
    assert server.get("/openapi.json").json()["components"]["schemas"]["CompletionRequest"]["properties"]["model"][
        "enum"
    ] == list(NAMES)
    response = completed(server, "third")
    assert response.status_code == 404
    assert "first, second" in response.json()["error"]["message"]
    assert completed(server, "first").json()["choices"][0]["text"] == wanted["first"]


@pytest.fixture(scope="module")
def changing(
    tiny_llava: Path, adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """A server that clients may give adapters of one directory, where other things are, too."""
    root = tmp_path_factory.mktemp("root")
    for name in ("first", "second"):
        shutil.copytree(adapters[name], root / "team" / name)
    (root / "away").symlink_to(adapters["first"])
    shutil.copytree(adapters["first"], root / "linked")
    (root / "linked" / "adapter_model.safetensors").unlink()
    (root / "linked" / "adapter_model.safetensors").symlink_to(adapters["first"] / "adapter_model.safetensors")
    shutil.copytree(adapters["first"], root / "broken")
    (root / "broken" / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 5, "lora_alpha": 8}')
    llm = AsyncLLM(str(tiny_llava), **OPTIONS)
    try:
        with serving(llm, allow_runtime_lora_updating=str(root)) as running:
            yield running
    finally:
        llm.close()


def load(server: Running, name: str, path: str, **more: Any) -> Any:
    return server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path, **more})


def unload(server: Running, name: str) -> Any:
    return server.post("/v1/unload_lora_adapter", {"lora_name": name})


def names_of(server: Running) -> list[str]:
    return [model["id"] for model in server.get("/v1/models").json()["data"]]


def test_adapters_come_and_go(changing: Running, wanted: dict[str, str]) -> None:
    """Each is a model from then on, and no more after; another can take its place."""
    assert completed(changing, "mine").status_code == 404
    assert load(changing, "mine", "team/first").json() == {"lora_adapters": ["mine"]}
    assert names_of(changing) == [MODEL, "mine"]
    assert completed(changing, "mine").json()["choices"][0]["text"] == wanted["first"]
    again = load(changing, "mine", "team/second")
    assert again.status_code == 400
    assert "load_inplace" in again.json()["error"]["message"]
    assert load(changing, "mine", "team/second", load_inplace=True).status_code == 200
    assert completed(changing, "mine").json()["choices"][0]["text"] == wanted["second"]
    assert completed(changing, MODEL).json()["choices"][0]["text"] == wanted[MODEL]
    assert unload(changing, "mine").json() == {"lora_adapters": []}
    for response in (completed(changing, "mine"), unload(changing, "mine")):
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"
    assert response.json()["error"]["param"] == "lora_name"
    assert "there is none" in response.json()["error"]["message"]
    assert names_of(changing) == [MODEL]
    assert "\ncorellm:lora_adapters_loaded 2.0\n" in changing.get("/metrics").text


def test_a_request_that_runs_keeps_its_adapter(changing: Running, wanted: dict[str, str]) -> None:
    """It goes on when the adapter is unloaded behind its first token."""
    load(changing, "mine", "team/second")
    body = {"prompt": TEXT, "max_tokens": 12, "temperature": 0, "ignore_eos": True, "model": "mine", "stream": True}
    texts = []
    with changing.http() as client, client.stream("POST", "/v1/completions", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                if not texts:
                    assert unload(changing, "mine").status_code == 200
                texts.append(json.loads(line[6:])["choices"][0]["text"])
    assert "".join(texts) == wanted["second"]
    assert len(texts) > 1


@pytest.mark.parametrize(
    ("name", "path", "says"),
    [
        (MODEL, "team/first", "is served already"),
        ("mine", "team/third", "no directory that adapters may be loaded from"),
        ("mine", "../../../../../etc", "no directory that adapters may be loaded from"),
        ("mine", "/etc", "no directory that adapters may be loaded from"),
        ("mine", "away", "no directory that adapters may be loaded from"),
        ("mine", "linked", "no directory that adapters may be loaded from"),
        ("mine", "a\0b", "no directory that adapters may be loaded from"),
        ("mine", "broken", "must be [5, 64]"),
        ("", "team/first", "lora_name"),
    ],
)
def test_what_clients_may_not_load(changing: Running, name: str, path: str, says: str) -> None:
    """Another model's name, files elsewhere, and what is no adapter of this model; nothing is served of it."""
    response = load(changing, name, path)
    assert response.status_code == 400
    assert says in response.json()["error"]["message"]
    assert response.json()["error"]["param"] in ("lora_name", "lora_path")
    assert names_of(changing) == [MODEL]


def test_clients_load_nothing_unless_they_may(server: Running, adapters: dict[str, Path]) -> None:
    """There are no such URLs."""
    for response in (load(server, "third", str(adapters["first"])), unload(server, "first")):
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "unknown_url"
    assert names_of(server) == list(NAMES)


def test_an_adapter_that_goes_while_a_request_is_prepared(adapters: dict[str, Path]) -> None:
    """It is not the model that answers in its place."""
    processor: Any = SimpleNamespace(process=lambda prompt: None)
    served = ServedAdapters([f"a={adapters['first']}"], ["model"], processor)
    assert served.keys_of({"model": "model"}) == served.keys_of({}) == {}
    assert served.keys_of({"model": "a"})["lora_request"].lora_path == str(adapters["first"])
    served.remove("a")
    with pytest.raises(ApiError, match="no LoRA adapter 'a'"):
        served.keys_of({"model": "a"})


def test_a_server_that_cannot_have_them(llm: Any, adapters: dict[str, Path], tmp_path: Path) -> None:
    """It does not start."""
    for given, error, says in (
        (["first"], ConfigError, "like name=directory"),
        ([f"{MODEL}=x"], ConfigError, "another model"),
        ([f"a={tmp_path}", f"b={tmp_path}"], InvalidParameterError, "enable_lora=True"),
    ):
        with pytest.raises(error, match=says), serving(llm, lora_modules=given):
            pass
    assert batch_options(ServerOptions(lora_modules=["a=b"]), 4).lora_modules == ("a=b",)
