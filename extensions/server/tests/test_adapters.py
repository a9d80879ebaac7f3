"""LoRA adapters over HTTP: each is a model of its own name, in every endpoint, with an engine in its own process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from corellm import LLM, LoRARequest, SamplingParams
from corellm.errors import ConfigError, InvalidParameterError
from corellm.serving import ProcessLLM
from corellm_server.batch.running import batch_options
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


def test_a_server_that_cannot_have_them(llm: Any, adapters: dict[str, Path], tmp_path: Path) -> None:
    """It does not start."""
    for given, error, says in (
        (["first"], ConfigError, "like name=directory"),
        ([f"{MODEL}=x"], ConfigError, "another model"),
        ([f"a={tmp_path}", f"a={tmp_path}"], InvalidParameterError, "enable_lora=True"),
    ):
        with pytest.raises(error, match=says), serving(llm, lora_modules=given):
            pass
    assert batch_options(ServerOptions(lora_modules=["a=b"]), 4).lora_modules == ("a=b",)
