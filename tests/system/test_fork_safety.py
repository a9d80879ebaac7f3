"""Engines refuse forks and pickling with an error that says "spawn"; a process that hangs is killed and fails."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from corellm import LLM, AsyncLLM
from corellm.errors import EngineDeadError, OtherProcessError

FORKED = """
import asyncio, os, sys
from corellm import LLM, AsyncLLM, LLMEngine, SamplingParams
from corellm.errors import OtherProcessError

few = {"num_kv_blocks": 64, "max_num_seqs": 4}
params = SamplingParams(temperature=0, max_tokens=3)

async def ask(llm):
    async for output in llm.generate("hello", params):
        pass

llm, engine, online = LLM("demo", **few), LLMEngine.from_kwargs(model="demo", **few), AsyncLLM("demo", **few)
expected = llm.generate("hello", params, use_tqdm=False)[0].outputs[0].token_ids
asyncio.run(ask(online))
engine.add_request("running", "hello", params)
uses = {
    "generate": lambda: llm.generate("hello", use_tqdm=False),
    "chat": lambda: llm.chat([{"role": "user", "content": "hello"}], use_tqdm=False),
    "add_request": lambda: engine.add_request("another", "hello"),
    "step": engine.step,
    "online": lambda: asyncio.run(ask(online)),
    "apply_model": lambda: asyncio.run(online.apply_model(str)),
    "load": lambda: LLM("demo", **few),
}
child = os.fork()
if not child:
    for name, use in uses.items():
        try:
            use()
        except OtherProcessError as error:
            print(name, "spawn" in str(error), flush=True)
    for opened in (llm, online):
        opened.close()
    print("closed", flush=True)
    os._exit(0)
os.waitpid(child, 0)
assert llm.generate("hello", params, use_tqdm=False)[0].outputs[0].token_ids == expected
llm.close(), online.close(), engine.shutdown()
print("the parent goes on")
"""


def test_a_forked_process_is_refused_at_once() -> None:
    """Every way to use an engine there, and to load a model anew; the parent's engines work on."""
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    told = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout.splitlines()
    names = ["generate", "chat", "add_request", "step", "online", "apply_model", "load"]
    assert told == [*(f"{name} True" for name in names), "closed", "the parent goes on"]


@pytest.mark.parametrize("to_bytes", [pickle.dumps, copy.copy, copy.deepcopy])
def test_engines_are_not_pickled(to_bytes: Callable[[Any], object]) -> None:
    """Nor copied, nor are their methods: the error names the class and the way out."""
    with LLM("demo", num_kv_blocks=64) as llm:
        for engine in (llm, llm.engine):
            with pytest.raises(OtherProcessError, match=rf'^{type(engine).__name__} .*"spawn"'):
                to_bytes(engine)
        with pytest.raises(EngineDeadError, match=r"^LLM "):
            pickle.dumps(llm.generate)
    online = AsyncLLM("demo", num_kv_blocks=64)
    try:
        with pytest.raises(OtherProcessError, match=r"^AsyncLLM "):
            to_bytes(online)
    finally:
        online.close()
