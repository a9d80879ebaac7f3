"""Why corellm does not take an argument, and what to use instead: true today, and noticed on the day it no longer is.

A reason names a way out, which must be there, or says that something is missing, which must be missing. What is there
is told from the names of modules, options, parameters, methods and hooks.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from corellm import CompletionOutput, PoolingParams, RequestOutput, SamplingParams, hookspecs
from corellm.config import CacheConfig, ModelConfig, MultiModalConfig, SchedulerConfig
from corellm.fetch_settings import FetchSettings
from corellm.plugin import extension_hooks
from corellm_server.commands.absent_flags import SERVER_FLAGS
from corellm_server.options import ServerOptions
from corellm_server.requests.chat import ChatRequest
from corellm_server.requests.sampling import OF_OTHERS
from corellm_vllm import LLM, AsyncLLM, EngineArgs, LLMEngine
from corellm_vllm.absent import names
from corellm_vllm.absent.engine import ENGINE_FLAGS
from corellm_vllm.absent.names import PROMPT_KEYS
from corellm_vllm.absent.sampling import ABSENT_SAMPLING
from docs.generate import usages
from docs.generate.tables import commands

ROOT = Path(__file__).resolve().parents[3]
OF_NAMES = (table for name, table in vars(names).items() if name.isupper() and isinstance(table, dict))
TABLES = (ENGINE_FLAGS, SERVER_FLAGS, OF_OTHERS, ABSENT_SAMPLING, *OF_NAMES)
REASONS = sorted({entry.instead for table in TABLES for entry in table.values()})
ENGINE_CONFIGS = (ModelConfig, CacheConfig, SchedulerConfig, MultiModalConfig)

MISSING: dict[str, set[str]] = {
    "diffusion models cannot": {"diffusion"},
    "a model runs on one device": {"tensor_parallel", "pipeline_parallel", "ranks", "tp"},
    "the engine's parts cannot be exchanged": {"cls"},
    "the KV cache is not shared between processes": {"connector", "connectors", "disaggregated"},
    "weights and KV cache stay on the device": {"offload", "offloading"},
    "nothing is compiled": {"compilation", "inductor"},
    "there are no FlashInfer kernels": {"flashinfer"},
    "there is no cascade attention": {"cascade"},
    "outputs do not say which experts": {"routed"},
    "no metrics are logged": {"stats"},
    "requests are not logged": {"log_requests"},
    "no platform has arguments": {"platform", "platforms"},
    "no sampler here takes any": {"extra_args"},
    "prompts are text or token ids": {"prompt_embeds"},
}
"""`{what reasons say: names that something would have if it were there}`."""

_LACKS = re.compile(
    r"\b(there (is|are) no\b|cannot|not there|nothing is|no (metrics|sampler|platform)|are not logged|do not say)"
)
_PATH = r"\bengine(?:\.[a-z_]+)+"
_ELSEWHERE = {
    "merge_and_unload",
    "multi_modal_data",
    "chat_template",
    "cache_salt",
    "prompts",
    "template",
    "trace_file",
}
"""Names in reasons that are arguments of methods, keys of prompts, or another library's."""


def public_names() -> Iterator[str]:
    """Yield the names of all that users set, call or implement."""
    for config in (
        *ENGINE_CONFIGS,
        ServerOptions,
        FetchSettings,
        SamplingParams,
        PoolingParams,
        RequestOutput,
        CompletionOutput,
    ):
        yield from (field.name for field in fields(config) if field.name not in ABSENT_SAMPLING)
    for owner in (LLM, AsyncLLM, LLMEngine, EngineArgs, hookspecs, extension_hooks):
        yield from dir(owner)
    yield from (name for listed in usages.modules().values() for name in listed)
    yield from ChatRequest.model_fields
    yield from commands()


def module_names() -> Iterator[str]:
    """Yield the names of modules and folders of every distribution but those of the tables."""
    for folder in ("core", "kernels", "plugins", "extensions"):
        for path in (ROOT / folder).rglob("*.py"):
            if not {"corellm_vllm", "tests", "tiny"} & {*path.relative_to(ROOT).parts} and "tiny" not in path.stem:
                yield path.parent.name if path.stem == "__init__" else path.stem


@pytest.fixture(scope="module")
def known() -> set[str]:
    return {name.lower() for name in (*public_names(), *module_names())}


@pytest.mark.parametrize("claim", MISSING)
def test_what_is_said_to_be_missing_is_missing(claim: str, known: set[str]) -> None:
    """No module, option, parameter, method or hook has its name: else the reason is stale."""
    assert any(claim in reason for reason in REASONS), "no reason says so any more: take it out of MISSING"
    words = {f"_{word}_" for word in MISSING[claim]}
    there = sorted(name for name in known if any(word in f"_{name}_" for word in words))
    assert not there, f"the tables say {claim!r}, but there is {', '.join(there)}: correct the reasons"


@pytest.mark.parametrize("reason", [reason for reason in REASONS if _LACKS.search(reason)])
def test_what_is_said_to_be_missing_is_watched(reason: str) -> None:
    """Every reason that says so has an entry in `MISSING`."""
    assert any(claim in reason for claim in MISSING)


@pytest.mark.parametrize("reason", REASONS)
def test_what_to_use_instead_is_there(reason: str, known: set[str]) -> None:
    """Arguments (`name=`), calls (`name(`), names with an underscore, and options of a command exist."""
    options = {option for action in commands()["serve"]._actions for option in action.option_strings}
    assert set(re.findall(r"(?<!\w)--[a-z-]+", reason)) <= options
    told = re.sub(rf"'[^']*'|{_PATH}", "", reason)  # without values, and what a loaded engine has
    used = {*re.findall(r"\b([a-z_]+)=", told), *re.findall(r"\b([a-z]+_[a-z_]+)\b", told)}
    assert used - known - _ELSEWHERE == set()


def test_what_another_place_takes_is_said() -> None:
    """An argument that the server or a pooling request has under the same name is shown the way there."""
    for name, entry in {**ENGINE_FLAGS, **PROMPT_KEYS}.items():
        if name in {field.name for owner in (ServerOptions, FetchSettings) for field in fields(owner)}:
            assert f"corellm serve --{name.replace('_', '-')}" in entry.instead
        if name in PROMPT_KEYS and name in {field.name for field in fields(PoolingParams)}:
            assert f"PoolingParams({name}=...)" in entry.instead


def test_the_attributes_to_use_are_there() -> None:
    """`use engine.a.b` names attributes of a loaded engine."""
    paths = {path for reason in REASONS for path in re.findall(_PATH, reason)}
    assert "engine.use.tasks" in paths
    with LLM("demo") as llm:
        for path in paths:
            operator.attrgetter(path)(llm)
