"""The server adds HTTP and nothing else: outputs are the offline API's, however many requests run at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai

from corellm import LLM, SamplingParams
from tests.server.conftest import MODEL, Running, image_part, user


def requests() -> list[dict[str, Any]]:
    """64 conversations: text of several lengths, no image, one or two, some with penalties or stop strings."""
    made: list[dict[str, Any]] = []
    for index in range(64):
        images = [image_part(seed) for seed in range(index % 3)]
        content = [*images, {"type": "text", "text": f"question {index}: " + "why " * (index % 17)}]
        extra: dict[str, Any] = [{}, {"frequency_penalty": 0.5}, {"stop": ["e"]}, {"logit_bias": {"30": 2.0}}][
            index % 4
        ]
        made.append({"messages": user(*content), "max_tokens": 4 + index % 9, **extra})
    return made


def test_64_mixed_requests_equal_offline_greedy_tokens(running: Running, tiny_llava: Path) -> None:
    """Half of them streamed, all at once: text, finish reason and numbers of tokens of each."""
    made = requests()
    want: list[tuple[Any, ...]] = []
    with LLM(str(tiny_llava), dtype="float32", block_size=8, max_num_seqs=16) as llm:
        params = [
            SamplingParams(temperature=0, ignore_eos=True, **{k: v for k, v in request.items() if k != "messages"})
            for request in made
        ]
        for output in llm.chat([request["messages"] for request in made], params):
            one = output.outputs[0]
            want.append((one.text, one.finish_reason, len(output.prompt_token_ids), len(one.token_ids)))

    async def ask(client: openai.AsyncOpenAI, index: int) -> tuple[Any, ...]:
        request = {"model": MODEL, "temperature": 0, "extra_body": {"ignore_eos": True}, **made[index]}
        if index % 2:
            got = await client.chat.completions.create(**request)
            usage, choice = got.usage, got.choices[0]
            text, reason = choice.message.content, choice.finish_reason
        else:
            text, reason, usage = "", None, None
            stream = await client.chat.completions.create(
                **request, stream=True, stream_options={"include_usage": True}
            )
            async for chunk in stream:
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    text, reason = text + (choice.delta.content or ""), choice.finish_reason or reason
        assert usage is not None
        return text, reason, usage.prompt_tokens, usage.completion_tokens

    async def main() -> list[tuple[Any, ...]]:
        async with openai.AsyncOpenAI(base_url=running.url + "/v1", api_key="x", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, index) for index in range(len(made))))

    assert asyncio.run(main()) == want
    assert len({text for text, *_ in want}) > 30
