"""An engine that is paused under a request."""

import asyncio

from corellm_vllm import SamplingParams
from corellm_vllm.engine.arg_utils import AsyncEngineArgs
from corellm_vllm.v1.engine.async_llm import AsyncLLM


async def main():
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model="demo", enforce_eager=True))
    try:
        async for _ in engine.generate("Hello", SamplingParams(max_tokens=4, ignore_eos=True), "0"):
            await engine.pause_generation(mode="keep")
            await engine.resume_generation()
    finally:
        engine.shutdown()


asyncio.run(main())
