"""Scripts written for vLLM: every usage on the page runs; for the rest, the error says what to use instead."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tqdm.auto import tqdm

import corellm
from corellm import LLM, AsyncLLM, LLMEngine, RequestOutputKind, SamplingParams, TextPrompt, TokensPrompt
from corellm.absent.engine import ENGINE_ARGUMENTS
from corellm.absent.names import METHODS, NAMES, PROMPT_KEYS, REQUEST_ARGUMENTS
from corellm.absent.table import Absent
from corellm.config import CacheConfig, EngineConfig, ModelConfig, MultiModalConfig, SchedulerConfig
from corellm.errors import (
    AbsentMethodError,
    AbsentNameError,
    ConfigError,
    CorellmError,
    InvalidParameterError,
    PromptError,
)
from corellm.fetching.settings import FetchSettings
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
        "engine": llm.engine,
        "output": llm.generate("Hello", GREEDY, use_tqdm=False)[0],
        "tokenizer": llm.get_tokenizer(),
        "params": GREEDY,
        "prompts": ["Hello", "Good morning"],
        "asked": "USER: <image>\nWhat shape is it? ASSISTANT:",
        "image": random_image(40, 30, 1),
        "messages": MESSAGES,
        "messages_with_image_url": [{"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]}],
        "model": "demo",
    }
    monkeypatch.chdir(tmp_path)  # traces are written there
    monkeypatch.setattr(LLMEngine, "from_kwargs", lambda **given: _Unloaded(EngineConfig.from_kwargs(**given)))
    types: dict[str, Any] = {"LLM": LLM, "AsyncLLM": _Arguments, "TextPrompt": TextPrompt, "TokensPrompt": TokensPrompt}
    types["RequestOutputKind"] = RequestOutputKind
    return {**made, **types, "SamplingParams": SamplingParams, "np": np, "torch": torch, "tqdm": tqdm}


class _Unloaded:
    """An engine whose configuration was checked."""

    prepares_at_once = False
    fetching_threads = 0

    def __init__(self, config: EngineConfig) -> None:
        self.config = config

    def shutdown(self) -> None:
        """There is nothing to free."""


class _Arguments:
    """`AsyncLLM(...)` without its thread."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        inspect.signature(AsyncLLM).bind(*args, **kwargs)
        LLMEngine.from_kwargs(model=args[0], **kwargs)


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


@pytest.mark.parametrize("line", usages.IMPORTS.values())
def test_import_lines(line: str) -> None:
    """The replacements of vLLM's import lines work."""
    names: dict[str, Any] = {}
    exec(line, names)
    wanted = {alias.name for statement in ast.parse(line).body for alias in statement.names}  # type: ignore[attr-defined]
    assert wanted < names.keys()


@pytest.mark.parametrize("name", ENGINE_ARGUMENTS)
def test_engine_argument(name: str) -> None:
    """Neutral values are accepted; the error for others has name, value and what to use instead."""
    entry = ENGINE_ARGUMENTS[name]
    for value in entry.neutral:
        assert EngineConfig.from_kwargs(model="demo", **{name: value}) == EngineConfig.from_kwargs(model="demo")
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
def test_prompt_key(name: str, llm: LLM) -> None:
    """The same holds for keys of a prompt; other prompts are not affected."""
    assert llm.generate({"prompt": "Hello", name: None}, GREEDY, use_tqdm=False)[0].finished
    wrong = {"prompt": "Hello", name: torch.zeros(2, 3)}
    bad, good = llm.generate([wrong, "Hello"], GREEDY, use_tqdm=False, on_error="return")
    assert isinstance(bad.error, PromptError)
    assert str(bad.error).endswith(PROMPT_KEYS[name].instead)
    assert good.finished
    assert good.error is None


@pytest.mark.parametrize("name", METHODS)
def test_method(name: str, llm: LLM, async_llm: AsyncLLM) -> None:
    """A typed error is raised that is an AttributeError, so hasattr is False."""
    for owner in (llm, async_llm):
        assert not hasattr(owner, name)
        with pytest.raises(AbsentMethodError, match=f"^{type(owner).__name__} .* {name}: ") as refused:
            getattr(owner, name)()
        assert str(refused.value).endswith(METHODS[name].instead)


@pytest.mark.parametrize("name", NAMES)
def test_name(name: str) -> None:
    """The error says what to use instead, and is an ImportError."""
    with pytest.raises(AbsentNameError, match=f"^corellm .* {name}: ") as refused:
        exec(f"from corellm import {name}")
    assert isinstance(refused.value, ImportError)


def test_unknown_names_raise_attribute_errors(llm: LLM) -> None:
    """A name in no table raises a plain AttributeError."""
    with pytest.raises(AttributeError, match="'LLM' object has no attribute 'nonsense'") as missing:
        _ = llm.nonsense  # type: ignore[attr-defined]
    assert not isinstance(missing.value, CorellmError)
    with pytest.raises(AttributeError, match="module 'corellm' has no attribute 'Nonsense'"):
        _ = corellm.Nonsense


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ("LLM()", ConfigError, "LLM: .*'model'; .*model, dtype"),
        ("LLM('demo', 'demo')", ConfigError, "LLM: too many positional arguments"),
        ("LLM(None)", ConfigError, "model .*None"),
        ("LLM('demo', quantisation=None)", ConfigError, "'quantisation'"),
        ("AsyncEngine()", ConfigError, "AsyncLLM: .*'model'"),
        ("LLMEngine.from_kwargs()", ConfigError, "model .*None"),
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
    names = {"LLM": LLM, "AsyncEngine": AsyncLLM, "LLMEngine": LLMEngine, "llm": llm, "np": np, "torch": torch}
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
    assert not ENGINE_ARGUMENTS.keys() & {field.name for config_class in classes for field in fields(config_class)}
    for method in (LLM.generate, LLM.chat, AsyncLLM.generate, AsyncLLM.chat):
        assert not REQUEST_ARGUMENTS.keys() & inspect.signature(method).parameters.keys()
    assert not METHODS.keys() & {*dir(LLM), *dir(AsyncLLM)}
    assert not NAMES.keys() & {*corellm.__all__}


def test_prompt_types_name_every_key() -> None:
    """`TextPrompt` and `TokensPrompt` have exactly the keys that a prompt may have."""
    from corellm.engine.input_processor import PROMPT_KEYS as KNOWN

    assert TextPrompt.__annotations__.keys() | TokensPrompt.__annotations__.keys() == KNOWN


def test_the_page_has_every_row() -> None:
    """The page has some two hundred usages and names, each in a table."""
    from docs.generate.directives import expand

    page = expand((ROOT / "docs/run/from-vllm.md").read_text(encoding="utf-8"), "run/from-vllm.md")
    tables = (ENGINE_ARGUMENTS, REQUEST_ARGUMENTS, PROMPT_KEYS, METHODS, NAMES)
    rows = [*(usage for _, usage in ROWS), *usages.DIFFERENT, *usages.IMPORTS, *(name for t in tables for name in t)]
    assert all(f"`{row}`" in page for row in rows)
    assert len(rows) > 200
