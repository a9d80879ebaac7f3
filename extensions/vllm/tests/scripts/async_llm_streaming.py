"""A stream of new text, request after request."""

import asyncio

from corellm_vllm import SamplingParams
from corellm_vllm.engine.arg_utils import AsyncEngineArgs
from corellm_vllm.sampling_params import RequestOutputKind
from corellm_vllm.v1.engine.async_llm import AsyncLLM


async def stream_response(engine: AsyncLLM, prompt: str, request_id: str) -> None:
    sampling_params = SamplingParams(
        max_tokens=8, temperature=0.8, top_p=0.95, seed=42, output_kind=RequestOutputKind.DELTA
    )
    async for output in engine.generate(request_id=request_id, prompt=prompt, sampling_params=sampling_params):
        for completion in output.outputs:
            print(completion.text, end="", flush=True)
        if output.finished:
            print()
            break


async def main():
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model="demo", enforce_eager=True))
    try:
        for number, prompt in enumerate(["Hello, I am", "What shape is it?"]):
            await stream_response(engine, prompt, f"stream-{number}")
    finally:
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
