"""A process that ends while requests run ends normally."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import asyncio, threading
from corellm import LLM, AsyncLLM, SamplingParams

prompts = [{"prompt_token_ids": [5 + i] * 400} for i in range(16)]
params = SamplingParams(max_tokens=100, ignore_eos=True)
llm, served = LLM("demo", dtype="float32"), AsyncLLM("demo", dtype="float32")
began = threading.Event()
step = llm.engine.step
llm.engine.step = lambda: (began.set(), step())[1]

async def main():
    asks = [asyncio.ensure_future(anext(served.generate(prompt, params))) for prompt in prompts]
    await asks[0]
    threading.Thread(target=llm.generate, args=(prompts, params), daemon=True).start()
    began.wait()
    asyncio.get_running_loop().stop()

loop = asyncio.new_event_loop()
loop.create_task(main())
loop.run_forever()
print("leaving", flush=True)
"""


def test_an_exit_in_mid_step() -> None:
    """Both a thread of ours and a daemon thread that called `generate` finish their step first; nothing aborts."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=600)
    assert done.stdout == "leaving\n"
    assert "terminate called" not in done.stderr
    assert done.returncode == 0


OPEN = """
from corellm import LLM

llm = LLM("demo")
engine, step = llm.engine, llm.engine.step

def model():
    return llm
"""


def test_an_exit_with_an_open_model_prints_nothing() -> None:
    """Scripts rarely close their models, and refer to them from what the interpreter takes down last."""
    done = subprocess.run([sys.executable, "-c", OPEN], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
