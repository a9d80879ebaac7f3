"""Scripts written for vLLM: every usage on the page runs; for the rest, the error says what to use instead."""

from __future__ import annotations

import argparse
import ast
import asyncio
import importlib
import inspect
import wave
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tqdm.auto import tqdm

import corellm
from corellm.config import CacheConfig, EngineConfig, ModelConfig, MultiModalConfig, SchedulerConfig
from corellm.errors import (
    AbsentMethodError,
    AbsentNameError,
    ConfigError,
    CorellmError,
    InvalidParameterError,
    MediaError,
    PromptError,
)
from corellm.fetch_settings import FetchSettings
from corellm.known_fields import Absent
from corellm_pooling.inputs import PooledInputs
from corellm_vllm import (
    LLM,
    AsyncEngineArgs,
    AsyncLLM,
    EngineArgs,
    LLMEngine,
    PoolingParams,
    SamplingParams,
    TextPrompt,
    TokensPrompt,
)
from corellm_vllm.absent.engine import ENGINE_ARGUMENTS, RENAMED, TASKS
from corellm_vllm.absent.names import (
    METHODS,
    MODULES,
    NAMES,
    POOLING_ARGUMENTS,
    PROMPT_KEYS,
    REQUEST_ARGUMENTS,
    SCORE_ARGUMENTS,
)
from corellm_vllm.absent.sampling import ABSENT_SAMPLING
from corellm_vllm.assets.audio import AudioAsset
from corellm_vllm.assets.image import ImageAsset
from corellm_vllm.assets.video import VideoAsset
from corellm_vllm.engine.arg_utils import engine_arguments
from corellm_vllm.multimodal.image import convert_image_mode
from corellm_vllm.multimodal.utils import encode_image_url, fetch_image
from corellm_vllm.sampling_params import RequestOutputKind
from corellm_vllm.utils import FlexibleArgumentParser
from docs.generate import usages
from tests.docs.test_pages import ROOT
from tests.fixtures import random_image

GREEDY = SamplingParams(temperature=0, max_tokens=4, logprobs=1)
MESSAGES = [{"role": "user", "content": "Hello"}]


class Other:
    """A value that no argument accepts."""


def neutral_arguments(table: Mapping[str, Absent], which: int = 0) -> dict[str, object]:
    return {name: entry.neutral[min(which, len(entry.neutral) - 1)] for name, entry in table.items()}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """The demo model, loaded with every absent argument at the last of its neutral values."""
    with LLM("demo", scheduling_policy="priority", **neutral_arguments(ENGINE_ARGUMENTS, 9)) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def async_llm() -> Iterator[AsyncLLM]:
    loaded = AsyncLLM("demo", scheduling_policy="priority", **neutral_arguments(ENGINE_ARGUMENTS))
    yield loaded
    loaded.close()


@pytest.fixture
def setup(llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the names that usages need; `LLM(...)` and `AsyncLLM(...)` only check their arguments."""
    image = {"type": "image_url", "image_url": {"url": (ROOT / "demo/images/star.png").as_uri()}}
    made = {
        "llm": llm,
        "engine": llm.llm_engine,
        "output": llm.generate("Hello", GREEDY, use_tqdm=False)[0],
        "tokenizer": llm.get_tokenizer(),
        "params": GREEDY,
        "prompts": ["Hello", "Good morning"],
        "asked": "USER: <image>\nWhat shape is it? ASSISTANT:",
        "image": random_image(40, 30, 1),
        "messages": MESSAGES,
        "messages_with_image_url": [{"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]}],
        "model": "demo",
        "directory": llm.engine.located.path,
        "args": EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(["--model", "demo"]),
    }
    monkeypatch.chdir(tmp_path)  # traces are written there
    monkeypatch.setattr(corellm.LLMEngine, "from_kwargs", lambda **given: _Unloaded(EngineConfig.from_kwargs(**given)))
    return {**NAMED, **made}


class _Unloaded:
    """An engine whose configuration was checked."""

    prepares_at_once = False
    fetching_threads = 0

    def __init__(self, config: EngineConfig) -> None:
        self.config = config

    def shutdown(self) -> None:
        """There is nothing to free."""


NAMED: dict[str, Any] = {
    "AudioAsset": AudioAsset, "EngineArgs": EngineArgs, "FlexibleArgumentParser": FlexibleArgumentParser,
    "ImageAsset": ImageAsset, "LLM": LLM, "LLMEngine": LLMEngine, "PoolingParams": PoolingParams,
    "RequestOutputKind": RequestOutputKind, "SamplingParams": SamplingParams, "TextPrompt": TextPrompt,
    "TokensPrompt": TokensPrompt, "VideoAsset": VideoAsset, "asdict": asdict, "convert_image_mode": convert_image_mode,
    "encode_image_url": encode_image_url, "fetch_image": fetch_image, "np": np, "torch": torch, "tqdm": tqdm,
}  # fmt: skip


def run(usage: str, names: dict[str, Any]) -> Any:
    """Run one usage; one that awaits gives a coroutine."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return eval(compile(usage, "<usage>", "exec", flags=flags), dict(names))


ROWS = [(about, usage) for about, rows in usages.SAME.items() for usage in rows if about != "`AsyncLLM`"]
DIFFERENT = [usage for usage in usages.DIFFERENT if "async_llm" not in usage and "profile" not in usage]


@pytest.mark.parametrize("usage", [usage for _, usage in ROWS] + DIFFERENT)
def test_usage_runs(usage: str, setup: dict[str, Any]) -> None:
    """It raises no error, and all requests finish."""
    run(usage, setup)
    engine = setup["engine"]
    while usage.startswith("engine.add") and engine.has_unfinished_requests():
        engine.step()
    assert not engine.has_unfinished_requests()


def test_async_usages_run(async_llm: AsyncLLM, setup: dict[str, Any]) -> None:
    """All run in one event loop, one after the other."""
    rows = [*usages.SAME["`AsyncLLM`"], *(usage for usage in usages.DIFFERENT if "async_llm" in usage)]

    async def main() -> None:
        for usage in rows:
            running = run(usage, {**setup, "async_llm": async_llm})
            if running is not None:
                await asyncio.wait_for(running, 600)

    asyncio.run(main())
    assert async_llm.is_running


@pytest.mark.parametrize("module", usages.modules())
def test_modules(module: str) -> None:
    """Every name can be imported; another one is a typed error, which is an ImportError, also of a module below."""
    names: dict[str, Any] = {}
    listed = usages.modules()[module]
    exec(f"from {module} import {', '.join(listed)}", names)
    assert names.keys() >= {*listed}
    for wrong in ("Nonsense", listed[0] + "s"):
        with pytest.raises(AbsentNameError, match=f"^{module} has no {wrong}") as refused:
            exec(f"from {module} import {wrong}")
        assert isinstance(refused.value, ImportError)
    with pytest.raises(AbsentNameError if hasattr(importlib.import_module(module), "__path__") else ImportError):
        importlib.import_module(f"{module}.nonsense")
    assert not hasattr(importlib.import_module(module), "__nonsense__")


@pytest.mark.parametrize("name", ENGINE_ARGUMENTS)
def test_engine_argument(name: str) -> None:
    """Neutral values are accepted; the error for others has name, value and what to use instead."""
    entry = ENGINE_ARGUMENTS[name]
    for value in entry.neutral:
        assert engine_arguments({"model": "demo", name: value}) == {"model": "demo"}
    with pytest.raises(ConfigError) as refused:
        LLM("demo", **{name: Other()})
    assert f"{name}=<" in str(refused.value)
    assert str(refused.value).endswith(entry.instead)


@pytest.mark.parametrize("name", REQUEST_ARGUMENTS)
def test_request_argument(name: str, llm: LLM, async_llm: AsyncLLM) -> None:
    """The same holds for `generate` and `chat` of `LLM` and `AsyncLLM`."""
    entry = REQUEST_ARGUMENTS[name]
    asked: dict[Any, Any] = {llm.generate: "Hello", llm.chat: MESSAGES}
    for method, prompt in asked.items():
        for value in entry.neutral:
            assert method(prompt, GREEDY, use_tqdm=False, **{name: value})[0].finished
    for method, prompt in {**asked, async_llm.generate: "Hello", async_llm.chat: MESSAGES}.items():
        with pytest.raises(InvalidParameterError, match=f"{method.__name__} .*{name}=<") as refused:
            method(prompt, GREEDY, **{name: Other()})
        assert refused.value.param == name
        assert str(refused.value).endswith(entry.instead)


@pytest.mark.parametrize("name", PROMPT_KEYS)
def test_prompt_key(name: str, llm: LLM, async_llm: AsyncLLM) -> None:
    """The same holds for keys of a prompt: it is refused in one line before any of the prompts is run."""
    assert llm.generate({"prompt": "Hello", name: None}, GREEDY, use_tqdm=False)[0].finished
    wrong = {"prompt": "Hello", name: torch.zeros(2, 3)}
    for call in (
        lambda: llm.generate([wrong, "Hello"], GREEDY, use_tqdm=False),
        lambda: llm.llm_engine.add_request("0", wrong, GREEDY),
        lambda: async_llm.generate(wrong, GREEDY),
    ):
        with pytest.raises(PromptError) as refused:
            call()
        assert str(refused.value).endswith(PROMPT_KEYS[name].instead)
        assert "\n" not in str(refused.value)
    assert not llm.engine.has_unfinished_requests()


@pytest.mark.parametrize("name", METHODS)
def test_method(name: str, llm: LLM, async_llm: AsyncLLM) -> None:
    """A typed error is raised that is an AttributeError, so hasattr is False."""
    for owner in (llm, async_llm, *([llm.llm_engine] if name not in dir(LLMEngine) else [])):
        assert not hasattr(owner, name)
        with pytest.raises(AbsentMethodError, match=f"^{type(owner).__name__} .* {name}: ") as refused:
            getattr(owner, name)()
        assert str(refused.value).endswith(METHODS[name].instead)


@pytest.mark.parametrize("name", NAMES)
def test_name(name: str) -> None:
    """The error says what to use instead, and is an ImportError, from whichever module."""
    for module in ("corellm_vllm", "corellm_vllm.sampling_params", "corellm_vllm.multimodal.utils"):
        with pytest.raises(AbsentNameError, match=f"^{module} .* {name}: ") as refused:
            exec(f"from {module} import {name}")
        assert str(refused.value).endswith(NAMES[name].instead)


@pytest.mark.parametrize("name", MODULES)
def test_module(name: str) -> None:
    """The same holds for modules, and what is below them."""
    for line in (f"import corellm_vllm.{name}", f"from corellm_vllm.{name}.below import Nonsense"):
        with pytest.raises(AbsentNameError) as refused:
            exec(line)
        assert str(refused.value).endswith(MODULES[name].instead)


def test_unknown_names_suggest_the_nearest(llm: LLM) -> None:
    """A name in no table is a typed error, too; Python's own protocols get Python's own."""
    with pytest.raises(AbsentMethodError, match="'generate'"):
        _ = llm.generat  # type: ignore[attr-defined]
    with pytest.raises(AbsentMethodError, match=r"EngineArgs .* from_cli_arg;.* 'from_cli_args'"):
        _ = EngineArgs("demo").from_cli_arg  # type: ignore[attr-defined]
    with pytest.raises(AttributeError) as missing:
        _ = llm.__nonsense__  # type: ignore[attr-defined]
    assert not isinstance(missing.value, CorellmError)


@pytest.mark.parametrize("owner", ["llm", "engine", "async_llm"])
def test_calls_of_an_extension_that_is_missing(
    owner: str, llm: LLM, async_llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What to install is said, instead of a name that is near."""
    monkeypatch.setattr("corellm.plugin.calls.call_extensions", lambda *_, **__: iter(()))
    loaded = {"llm": llm, "engine": llm.llm_engine, "async_llm": async_llm}[owner]
    with pytest.raises(AbsentMethodError, match=r"sleep comes with .* pip install \./extensions/training"):
        loaded.sleep()


def test_a_submodule_is_found_by_the_package() -> None:
    """`from package import module` gives the module."""
    from corellm_vllm import utils
    from corellm_vllm.v1.metrics import reader

    assert utils.FlexibleArgumentParser is FlexibleArgumentParser
    assert reader.Counter is corellm.engine.metrics.Counter  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ABSENT_SAMPLING)
def test_sampling_parameter(name: str) -> None:
    """Accepted with a value that asks for nothing, also when assigned; refused with another, with a way out."""
    for neutral in ABSENT_SAMPLING[name].neutral:
        assert SamplingParams(**{name: neutral}) == SamplingParams()
    with pytest.raises(InvalidParameterError, match=f"{name}=.*: .+") as caught:
        SamplingParams(**{name: 7})
    assert caught.value.param == name
    params = SamplingParams()
    setattr(params, name, "x")
    with pytest.raises(InvalidParameterError, match=name):
        params.clone()


@pytest.mark.parametrize("name", POOLING_ARGUMENTS)
def test_pooling_parameter(name: str) -> None:
    """The same holds for `PoolingParams`, which need no task."""
    for neutral in POOLING_ARGUMENTS[name].neutral:
        PoolingParams(**{name: neutral})
    with pytest.raises(InvalidParameterError) as caught:
        PoolingParams(**{name: Other()})
    assert caught.value.param == name


def test_pooling_parameters_get_the_task_of_the_call() -> None:
    """Unless they have one; a value that does not fit is refused when they are made, or when the task is known."""
    assert PoolingParams(dimensions=4).of("embed") == corellm.PoolingParams(task="embed", dimensions=4)
    assert PoolingParams(task="token_embed").of("embed").task == "token_embed"
    assert PoolingParams(softmax=False).of("classify").use_activation is False
    with pytest.raises(InvalidParameterError) as caught:
        PoolingParams(dimensions=0)
    assert caught.value.param == "dimensions"
    with pytest.raises(InvalidParameterError):
        PoolingParams(dimensions=4).of("classify")


@pytest.mark.parametrize("name", RENAMED)
def test_renamed_argument(name: str) -> None:
    """It is corellm's under another name; both at once are refused."""
    value = Other()
    assert engine_arguments({"model": "demo", name: value}) == {"model": "demo", RENAMED[name]: value}
    assert engine_arguments({name: None}) == {}
    with pytest.raises(ConfigError, match=f"{name} and {RENAMED[name]}"):
        engine_arguments({name: value, RENAMED[name]: Other()})


def test_tasks() -> None:
    """Each is a runner and a conversion; another one is refused with those that there are."""
    for task, meant in TASKS.items():
        assert engine_arguments({"task": task}) == meant
    for wrong in ("draft", 3):
        with pytest.raises(ConfigError, match="embed, "):
            engine_arguments({"task": wrong})


def test_arguments_of_a_command_line() -> None:
    """They are those of `EngineArgs`, with the same defaults; an option of vLLM is read and then refused as ever."""
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parsed = parser.parse_args(["--model", "demo"])
    assert vars(parsed) == asdict(EngineArgs("demo")) == asdict(AsyncEngineArgs.from_cli_args(parsed))
    given = [
        "--tensor_parallel_size=2",
        "--max-model-len",
        "64",
        "--enable-lora-bias",
        "--kv-transfer-config",
        "{'a': 1}",
    ]
    wide = EngineArgs.from_cli_args(parser.parse_args(given))
    assert (wide.tensor_parallel_size, wide.max_model_len, wide.kv_transfer_config) == (2, 64, {"a": 1})  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="tensor_parallel_size=2"):
        LLMEngine.from_engine_args(wide)
    with pytest.raises(ConfigError, match="'max_model_len'"):
        EngineArgs("demo", max_model_length=64)


def test_arguments_are_copies() -> None:
    """What a script changes in one is not changed in another."""
    first, second = EngineArgs("demo"), EngineArgs("demo")
    first.limit_mm_per_prompt["image"] = 1  # type: ignore[attr-defined]
    assert second.limit_mm_per_prompt == {}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ("LLM()", ConfigError, "LLM: .*'model'; .*model"),
        ("LLM('demo', 'demo')", ConfigError, "LLM: too many positional arguments"),
        ("LLM(None)", ConfigError, "model .*None"),
        ("LLM('demo', quantisation=None)", ConfigError, "'quantisation'"),
        ("AsyncEngine()", ConfigError, "AsyncLLM: .*'model'"),
        ("LLMEngine.from_engine_args(EngineArgs())", ConfigError, "model .*None"),
        ("LLMEngine.from_engine_args()", ConfigError, "'engine_args'"),
        ("llm.llm_engine.add_request()", InvalidParameterError, "'request_id'"),
        ("llm.llm_engine.reset_prefix_cache(reset_running_requests=True)", InvalidParameterError, "abort_request"),
        ("llm.score('a', 'b', chat_template='x')", InvalidParameterError, "template="),
        ("llm.embed('a', lora_request=1)", InvalidParameterError, "in each prompt"),
        ("llm.embed('a')", InvalidParameterError, "convert='embed'"),
        ("ImageAsset()", InvalidParameterError, "'name'"),
        ("ImageAsset('../x')", InvalidParameterError, "'../x'"),
        ("ImageAsset('x').pixel_values", InvalidParameterError, "pil_image"),
        ("ImageAsset('x').pil_image_ext('xyz')", InvalidParameterError, "'xyz'"),
        ("VideoAsset('x', num_frames=0)", InvalidParameterError, "num_frames .*0"),
        ("fetch_image()", InvalidParameterError, "'image_url'"),
        ("fetch_image(5)", InvalidParameterError, "int"),
        ("fetch_image('file://elsewhere/x.png')", MediaError, "another machine"),
        ("fetch_image('/nowhere/x.png')", MediaError, "nowhere"),
        ("fetch_image('http://127.0.0.1/x.png')", MediaError, "not public"),
        ("encode_image_url(ImageAsset('x').pil_image, format='xyz')", InvalidParameterError, "format='xyz'"),
        ("llm.generate()", InvalidParameterError, "LLM.generate: missing a required argument: 'prompts'"),
        ("llm.generate('a', None, False, 1)", InvalidParameterError, "LLM.generate: too many positional arguments"),
        ("llm.generate('a', temperature=0)", InvalidParameterError, "'temperature'"),
        ("llm.generate('a', use_tqdm=[1])", InvalidParameterError, "use_tqdm"),
        (
            "llm.generate('a', priority=[1, 2])",
            InvalidParameterError,
            "priority .*one integer",
        ),
        ("llm.generate('a', priority=1)", InvalidParameterError, "priority .*list"),
        ("llm.generate('a', priority=['x'])", PromptError, "priority .*'x'"),
        ("llm.generate(None)", PromptError, "got None"),
        ("llm.generate(5)", PromptError, "got 5"),
        ("llm.generate(b'text')", PromptError, "text, token ids"),
        ("llm.generate([1.5])", PromptError, "got 1.5"),
        ("llm.generate([[1.5]])", PromptError, "prompt_token_ids .*float"),
        ("llm.generate([[True]])", PromptError, "but holds bool"),
        ("llm.generate([[[1]]])", PromptError, "but holds list"),
        ("llm.generate([[]])", PromptError, "prompt is empty"),
        ("llm.generate(np.array(5))", PromptError, "prompt_token_ids .*got array"),
        ("llm.generate(torch.tensor([1.5]))", PromptError, "but holds float"),
        ("llm.generate(np.array([5, -1]))", PromptError, "token -1"),
        ("llm.chat()", InvalidParameterError, "LLM.chat: .*'messages'"),
        ("llm.stop_profile()", InvalidParameterError, "no trace"),
        ("llm.start_profile('/nowhere/trace.json')", InvalidParameterError, "trace_file"),
    ],
)
def test_misuse_is_typed(call: str, error: type[Exception], message: str, llm: LLM) -> None:
    """Misuse raises a typed error, never a bare TypeError."""
    names = {**NAMED, "AsyncEngine": AsyncLLM, "llm": llm}
    with pytest.raises(error, match=message):
        run(call, names)


def test_misuse_of_coroutines_is_typed(async_llm: AsyncLLM) -> None:
    """Unknown arguments raise at the first iteration."""

    async def main() -> None:
        with pytest.raises(InvalidParameterError, match="'nonsense'"):
            _ = [output async for output in async_llm.chat(MESSAGES, GREEDY, nonsense=1)]
        with pytest.raises(InvalidParameterError, match="'nonsense'"):
            _ = [output async for output in async_llm.generate("Hello", GREEDY, nonsense=1)]

    asyncio.run(main())


def test_tables_hold_only_what_is_absent() -> None:
    """No table of absent names has a name that corellm has."""
    classes = (ModelConfig, CacheConfig, SchedulerConfig, MultiModalConfig, FetchSettings)
    taken = {field.name for config_class in classes for field in fields(config_class)}
    assert not {*ENGINE_ARGUMENTS, *RENAMED, "task"} & taken
    assert {*RENAMED.values()} <= taken
    for method in (corellm.LLM.generate, corellm.LLM.chat, corellm.AsyncLLM.generate, corellm.AsyncLLM.chat):
        assert not REQUEST_ARGUMENTS.keys() & inspect.signature(method).parameters.keys()
    assert not METHODS.keys() & {*dir(LLM), *dir(AsyncLLM)}
    assert METHODS.keys() & {*dir(LLMEngine)} == {"add_request"}
    assert not NAMES.keys() & {*corellm.__all__, *(name for names in usages.modules().values() for name in names)}
    assert not {f"corellm_vllm.{name}" for name in MODULES} & usages.modules().keys()
    own = {field.name for field in fields(corellm.SamplingParams)}
    assert own | {"guided_decoding"} | ABSENT_SAMPLING.keys() == {field.name for field in fields(SamplingParams)}
    assert not own & ABSENT_SAMPLING.keys()


def test_the_core_sends_scripts_here() -> None:
    """An argument that it does not have is a typed error with the import to use; a typo gets the nearest name alone."""
    for call in (
        lambda: corellm.LLM("demo", tensor_parallel_size=1),
        lambda: corellm.LLM.generate(None, "Hello", prompt_adapter_request=None),  # type: ignore[call-arg, arg-type]
    ):
        with pytest.raises((ConfigError, InvalidParameterError), match="from corellm_vllm import LLM"):
            call()
    with pytest.raises(ConfigError) as typo:
        corellm.LLM("demo", max_model_length=3)
    assert "'max_model_len'" in str(typo.value)
    assert "corellm_vllm" not in str(typo.value)


def test_assets_are_the_same_for_the_same_name() -> None:
    """And others for another one; nothing is read from anywhere."""
    first, again, other = (np.asarray(ImageAsset(name).pil_image) for name in ("a", "a", "b"))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    video = VideoAsset("a", num_frames=4)
    assert video.np_ndarrays.shape == (4, 96, 128, 3)
    assert video.metadata["total_num_frames"] == len(video.pil_images) == 4
    samples, rate = AudioAsset("a").audio_and_sample_rate
    assert (samples.dtype, samples.shape, rate) == (np.float32, (2 * 16_000,), 16_000)
    with wave.open(str(AudioAsset("a").get_local_path())) as file:
        assert (file.getframerate(), file.getnframes()) == (rate, len(samples))


def test_images_come_back_from_their_urls() -> None:
    """As `data:`, as a path and as `file:`, without a loss."""
    image = ImageAsset("a").pil_image
    path = ImageAsset("a").get_path()
    for url in (encode_image_url(image), str(path), path.as_uri()):
        assert np.array_equal(np.asarray(fetch_image(url)), np.asarray(image))


def test_parsers_take_underscores() -> None:
    """In names of options, and not in their values."""
    parser = FlexibleArgumentParser()
    parser.add_argument("--model-type")
    parser.add_argument("words", nargs="*")
    parsed = parser.parse_args(["--model_type=a_b", "c_d"])
    assert parsed == argparse.Namespace(model_type="a_b", words=["c_d"])


def test_prompt_types_name_every_key() -> None:
    """`TextPrompt` and `TokensPrompt` have exactly the keys that a prompt may have, to generate or to pool."""
    assert TextPrompt.__annotations__.keys() | TokensPrompt.__annotations__.keys() == PooledInputs.prompt_keys


def test_the_page_has_every_row() -> None:
    """The page has some two hundred usages and names, each in a table."""
    from docs.generate.directives import expand

    page = expand((ROOT / "docs/run/from-vllm.md").read_text(encoding="utf-8"), "run/from-vllm.md")
    tables = (
        ENGINE_ARGUMENTS, RENAMED, REQUEST_ARGUMENTS, SCORE_ARGUMENTS, PROMPT_KEYS, METHODS, NAMES, MODULES,
        ABSENT_SAMPLING, POOLING_ARGUMENTS,
    )  # fmt: skip
    rows = [*(usage for _, usage in ROWS), *usages.DIFFERENT, *usages.modules(), *(name for t in tables for name in t)]
    assert all(f"`{row}`" in page for row in rows)
    assert len(rows) > 200
