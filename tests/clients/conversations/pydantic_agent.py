"""Pydantic AI's agent."""

import asyncio
import sys
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, BinaryContent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from shared import Turns, converse

url, name = sys.argv[1:3]
agent = Agent(
    OpenAIChatModel(name, provider=OpenAIProvider(base_url=url + "/v1", api_key="x")),
    model_settings={"temperature": 0.0},
)


async def held(turns: Turns, *, streamed: bool) -> list[str]:
    """The output of each turn; the agent's history goes back."""
    texts, history = [], None
    for text, image in turns:
        prompt: list[Any] = [text]
        if image is not None:
            prompt.insert(0, BinaryContent(Path(turns.path).read_bytes(), media_type="image/png"))
        if streamed:
            async with agent.run_stream(prompt, message_history=history) as result:
                texts.append(await result.get_output())
                history = result.all_messages()
        else:
            run = await agent.run(prompt, message_history=history)
            texts.append(run.output)
            history = run.all_messages()
    return texts


def hold(turns: Turns, *, streamed: bool) -> list[str]:
    """The same, outside of a loop."""
    return asyncio.run(held(turns, streamed=streamed))


converse(hold)
