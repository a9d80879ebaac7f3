"""Several models behind one address: requests go by name, one gate is before all, and one's engine may end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from corellm.cli import build_parser
from corellm.errors import CheckpointError, ConfigError
from corellm_server.commands.arguments import configured
from corellm_server.commands.engines import engine_offers, opened_engines
from corellm_server.commands.models import ModelConfig, configured_models
from corellm_server.commands.serve import services_of
from corellm_server.data_parallel.client import DataParallelLLM
from extensions.server.tests.command import CHAT
from extensions.server.tests.conftest import Running, chat, image_part, served, user
from tests.fixtures import wait_until


def models_of(file: Path, text: str, *arguments: str) -> dict[str, ModelConfig]:
    """The models that a file and a command line name."""
    file.write_text(text)
    offers = engine_offers()
    args = build_parser().parse_args(["serve", "--config", str(file), *arguments])
    return configured_models(args, [offer.options for offer in offers])


@pytest.fixture(scope="module")
def both(
    tiny_llava: Path, make_llava: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """A server with two models, each with an engine in a process of its own."""
    text = f"""
port: 0
api_key: [key]
dtype: float32
block_size: 8
models:
  first:
    model: {tiny_llava}
    served_model_name: [tiny]
  second:
    model: {make_llava(seed=1)}
    max-model-len: 96
    max_queue: 2
"""
    models = models_of(tmp_path_factory.mktemp("models") / "server.yaml", text)
    with opened_engines(engine_offers(), models) as clients, served(*services_of(models, clients)) as running:
        yield running


def client_of(running: Running) -> openai.OpenAI:
    """One that may use the server."""
    return running.client("key")


def text_of(client: openai.OpenAI, model: str, messages: Any, **fields: Any) -> str:
    """A greedy output."""
    asked = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=12, **fields)
    return asked.choices[0].message.content or ""


QUESTION = user(image_part(3), {"type": "text", "text": "what?"})


def test_requests_go_by_the_name_of_the_model(both: Running, running: Running) -> None:
    """Outputs are each model's own; all names are listed, each with its length."""
    client = client_of(both)
    assert {model.id: model.model_dump()["max_model_len"] for model in client.models.list()} == {
        "first": running.service.client.max_model_len, "tiny": running.service.client.max_model_len, "second": 96,
    }  # fmt: skip
    of_first = text_of(running.client(), "tiny", QUESTION)
    assert [text_of(client, name, QUESTION) for name in ("first", "tiny")] == [of_first, of_first]
    assert text_of(client, "second", QUESTION) != of_first
    stream = client.chat.completions.create(
        model="second", messages=QUESTION, temperature=0, max_tokens=12, stream=True  # type: ignore[arg-type]
    )  # fmt: skip
    parts = list(stream)
    assert {part.model for part in parts} == {"second"}
    assert "".join(part.choices[0].delta.content or "" for part in parts) == text_of(client, "second", QUESTION)
    assert client.models.retrieve("second").id == "second"


def test_a_model_that_is_not_there(both: Running, running: Running) -> None:
    """The usual 404, with all names; a request that names none asks the first one."""
    client = client_of(both)
    told = "there is no model 'third' here; there is first, tiny, second"
    with pytest.raises(openai.NotFoundError, match=told) as caught:
        text_of(client, "third", QUESTION)
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError, match=told):
        client.models.retrieve("third")
    key = {"x-api-key": "key"}
    for wrong in ({}, {"model": 3}):
        body = {name: value for name, value in chat(QUESTION).items() if name != "model"}
        told = both.post(CHAT, body | wrong, headers=key)
        assert (told.status_code, told.json()["error"]["param"]) == (400, "model")
    counted = [
        both.post("/tokenize", {"prompt": "a " * 90} | named, headers=key) for named in ({}, {"model": "second"})
    ]
    assert [one.json()["max_model_len"] for one in counted] == [running.service.client.max_model_len, 96]


def test_one_gate_is_before_all(both: Running) -> None:
    """Keys, counts and kept responses are the server's; metrics of engines tell of which model they are."""
    with pytest.raises(openai.AuthenticationError):
        text_of(both.client("another"), "second", QUESTION)
    client = client_of(both)
    begun = client.responses.create(model="first", input="hello", max_output_tokens=4)
    went_on = client.responses.create(
        model="second", input="go on", max_output_tokens=4, previous_response_id=begun.id
    )  # fmt: skip
    assert client.responses.retrieve(went_on.id).model == "second"
    families = text_string_to_metric_families(both.get("/metrics", headers={"x-api-key": "key"}).text)
    samples = [sample for family in families for sample in family.samples]
    tokens = {
        (sample.labels["model"], sample.labels["replica"]): sample.value
        for sample in samples
        if sample.name == "corellm:generation_tokens_total"
    }
    assert tokens.keys() == {("first", "0"), ("second", "1")}
    assert all(tokens.values())
    (answered,) = (
        sample.value
        for sample in samples
        if sample.name == "corellm:requests_total" and sample.labels == {"route": CHAT, "outcome": "ok"}
    )
    assert answered >= 2


def test_the_end_of_an_engine_is_its_model_s_alone(both: Running, running: Running) -> None:
    """The other goes on; its own requests have one clear error until it is back, and the server does not end."""
    client = client_of(both)
    wanted = text_of(client, "second", QUESTION)
    second = both.server._models.find("second").client
    assert isinstance(second, DataParallelLLM)
    stream = client.chat.completions.create(
        model="second", messages=user("go on"), max_tokens=80, stream=True, extra_body={"ignore_eos": True}  # type: ignore[arg-type]
    )  # fmt: skip
    next(iter(stream))
    (pid,) = second.pids.values()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(openai.APIError, match="ended while it had the request; send it again"):
        list(stream)
    wait_until(lambda: not second.pids)
    if not second.pids:
        told = both.post(CHAT, {**chat(QUESTION), "model": "second"}, headers={"x-api-key": "key"})
        assert told.status_code == 200 or told.json()["error"]["code"] == "engine_lost"
    assert text_of(client, "first", QUESTION) == text_of(running.client(), "tiny", QUESTION)
    assert both.get("/ready").status_code == both.get("/health").status_code == 200
    wait_until(lambda: bool(second.pids))
    assert text_of(client, "second", QUESTION) == wanted
    assert both.statuses == []


def test_models_of_a_file(tmp_path: Path) -> None:
    """What stands beside `models` is for each that says nothing else; the command line goes before it."""
    text = """
port: 9000
dtype: float32
max-n: 3
allow_request_templates: true
models:
  a: {model: x, dtype: bfloat16, tool-call-parser: hermes}
  b: {model: y, served_model_name: c, data_parallel_size: 2, lora_modules: [d=folder], enable_lora: true}
  b_: {model: y}
  b-: {model: y}
"""
    models = models_of(tmp_path / "server.yaml", text, "--port", "9001", "--max-num-seqs", "4")
    assert {name: model.engine_args for name, model in models.items()} == {
        "a": {"model": "x", "dtype": "bfloat16", "max_num_seqs": 4},
        "b": {"model": "y", "dtype": "float32", "max_num_seqs": 4, "enable_lora": True},
        "b_": {"model": "y", "dtype": "float32", "max_num_seqs": 4},
        "b-": {"model": "y", "dtype": "float32", "max_num_seqs": 4},
    }
    options = [model.config.options for model in models.values()]
    assert [one.served_model_name for one in options] == [("a",), ("b", "c"), ("b_",), ("b-",)]
    assert {(one.port, one.allow_request_templates) for one in options} == {(9001, True)}
    assert [one.tool_call_parser for one in options] == ["hermes", None, None, None]
    assert {model.config.limits.max_n for model in models.values()} == {3}
    assert [model.config.offered[0].data_parallel_size for model in models.values()] == [1, 2, 1, 1]


@pytest.mark.parametrize(
    ("text", "of_models", "of_server"),
    [
        ("models: {a: {model: x}, b: {model: y}}", [256, 256], 512),
        ("models: {a: {model: x, max-queue: 3}, b: {model: y}}", [3, 256], 259),
        ("max_queue: 9\nmodels: {a: {model: x}, b: {model: y}}", [5, 4], 9),
        ("max_queue: 9\nmodels: {a: {model: x}, b: {model: y, max_queue: 2}, c: {model: z}}", [4, 2, 3], 9),
        ("max_queue: 9\nmodels: {a: {model: x, max_queue: 8}, b: {model: y}}", [8, 1], 9),
        ("max_queue: 9\nmodels: {a: {model: x, max_queue: 8}, b: {model: y, max_queue: 9}}", [8, 9], 9),
    ],
)
def test_each_model_has_places_of_its_own(tmp_path: Path, text: str, of_models: list[int], of_server: int) -> None:
    """And the server's are all of them, unless the file says how many: these are divided."""
    models = models_of(tmp_path / "server.yaml", text).values()
    assert [model.max_queue for model in models] == of_models
    assert {model.config.options.max_queue for model in models} == {of_server}


def test_a_model_that_is_full_keeps_none_from_the_others(both: Running) -> None:
    """Its own requests are told; a response in the background has a place until it is made, and questions need none."""
    key = {"x-api-key": "key"}
    second = both.server._models.find("second")
    asked = {"model": "second", "input": "go on", "background": True, "max_output_tokens": 80}
    begun = [both.post("/v1/responses", asked, headers=key) for _ in range(2)]
    assert [one.status_code for one in begun] == [200, 200]
    assert len(second.in_flight) == 2
    told = both.post(CHAT, {**chat(QUESTION), "model": "second"}, headers=key)
    assert (told.status_code, told.json()["error"]["code"]) == (503, "unavailable")
    assert told.json()["error"]["message"] == "second is full: 2 requests are in it; try again later"
    assert both.post(CHAT, {**chat(QUESTION), "model": "first"}, headers=key).status_code == 200
    assert both.get("/v1/models", headers=key).status_code == 200
    for one in begun:
        both.post(f"/v1/responses/{one.json()['id']}/cancel", {}, headers=key)
    wait_until(lambda: not second.in_flight)
    assert both.post(CHAT, {**chat(QUESTION), "model": "second"}, headers=key).status_code == 200


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models:", "models must have lines like"),
        ("models: [a]", "models must have lines like"),
        ("models: &all {a: *all}", "is nested too deeply"),
        ("models: {a: b}", "'a' must be a name with options, like `chat: {model: demo}`; got 'b'"),
        ("models: {1: {model: x}}", "1 must be a name"),
        ("models: {a: {model: x}, a: {model: y}}", "'a' is there twice"),
        ("models: {a: {max-num-seqs: 1, max_num_seqs: 2}}", "'max_num_seqs' is there twice"),
        ("models: {a: {}}", "models: a: which model"),
        ("max_queue: 1\nmodels: {a: {model: x}, b: {model: y}}", "max_queue=1 leaves 1 for a, b, which need 1 each"),
        ("models: {a: {model: x, port: 1}}", "'a': port is the whole server's; write it beside"),
        ("models: {a: {model: x, max-n: 1}}", "'a': max-n is the whole server's"),
        ("models: {a: {model: x, max_num_sequences: 1}}", "'max_num_sequences'; did you mean 'max_num_seqs'"),
        ("models: {a: {model: x, max_num_seqs: many}}", "'a': max_num_seqs: .*'many'"),
        ("models: {a: {model: x, lora_modules: [b=c]}}", "models: a: lora_modules needs enable_lora"),
        ("model: x\nmodels: {a: {model: x}}", "model does not go with `models`"),
        ("served_model_name: x\nmodels: {a: {model: x}}", "served_model_name does not go with `models`"),
        ("enable_sleep_mode: true\nmodels: {a: {model: x}}", "enable_sleep_mode is for a server of one model"),
        ("models: {a: {model: x, enable_sleep_mode: true}}", "'a': enable_sleep_mode is for a server of one model"),
        ("models: {a: {model: x, served_model_name: b}, b: {model: x}}", "'b' names two models .* 'a' and of 'b'"),
        ("models: {a: {model: x, served_model_name: a}}", "'a' names two models .* 'a' and of 'a'"),
        ("models: {a: {model: x}, b: {model: x, enable_lora: true, lora_modules: [a=y]}}", "'a' names two"),
        ("enable_lora: true\nlora_modules: [c=y]\nmodels: {a: {model: x}, b: {model: x}}", "'c' names two"),
    ],
)  # fmt: skip
def test_wrong_models(tmp_path: Path, text: str, message: str) -> None:
    """Each is refused before a model is loaded, and says what to write."""
    with pytest.raises(ConfigError, match=message):
        models_of(tmp_path / "server.yaml", text)


def test_a_wrong_checkpoint_says_whose_it_is(tmp_path: Path) -> None:
    """Its error is as of an only one, with the name of the model before it."""
    models = models_of(tmp_path / "server.yaml", f"models: {{a: {{model: {tmp_path}/misspelt}}, b: {{model: y}}}}")
    with pytest.raises(CheckpointError, match=r"^models: a: .*misspelt"), opened_engines(engine_offers(), models):
        pass


def test_engines_that_hang_are_ended_as_a_file_says(tmp_path: Path) -> None:
    """Each model has engines that are started again, also a single one; a server of one model has that of several."""
    text = "engine_hang_timeout: 5\nmodels: {a: {model: x}, b: {model: y, data_parallel_size: 2}}"
    opened_engines(engine_offers(), models_of(tmp_path / "server.yaml", text))
    with pytest.raises(ConfigError, match="engine_hang_timeout needs data_parallel_size"):
        opened_engines(engine_offers(), models_of(tmp_path / "server.yaml", "model: x\nengine_hang_timeout: 5"))


def test_a_batch_has_one_model(tmp_path: Path) -> None:
    (tmp_path / "server.yaml").write_text("models: {a: {model: x}}")
    args = build_parser().parse_args(["batch", "-i", "x", "-o", "y", "--config", str(tmp_path / "server.yaml")])
    with pytest.raises(ConfigError, match="models are for corellm serve; batch has one model"):
        configured(args)
