"""Many requests at once, by the older name of the engine."""

import asyncio

from corellm_vllm import AsyncEngineArgs, AsyncLLMEngine, SamplingParams
from corellm_vllm.utils import random_uuid

engine_args = AsyncEngineArgs(model="demo", enforce_eager=True, disable_log_requests=True)


async def run_query(engine, query):
    final = None
    async for output in engine.generate(query, SamplingParams(max_tokens=8), random_uuid()):
        final = output
    return final.outputs[0].text


async def main():
    engine = AsyncLLMEngine.from_engine_args(engine_args)
    print(await asyncio.gather(*(run_query(engine, query) for query in ("Hello", "What shape is it?"))))
    engine.shutdown()


asyncio.run(main())
