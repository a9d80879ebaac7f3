"""The backend of guidellm's benchmarks, with a conversation as its history; a message's text goes before its image."""

import asyncio
import sys

from guidellm.backends.openai.http import OpenAIHTTPBackend
from guidellm.schemas import GenerationRequest, GenerationRequestArguments, RequestInfo
from guidellm.schemas.backends import OpenAIHTTPBackendArgs
from shared import Turns, converse

url, name = sys.argv[1:3]


async def held(turns: Turns, *, streamed: bool) -> list[str]:
    """The output of each turn."""
    extras = GenerationRequestArguments(body={"temperature": 0})
    backend = OpenAIHTTPBackend(OpenAIHTTPBackendArgs(target=url, model=name, stream=streamed, extras=extras))
    await backend.process_startup()
    await backend.validate()
    history = []
    for text, image in turns:
        images = [] if image is None else [{"image": image}]
        request = GenerationRequest(columns={"text_column": [text], "image_column": images})
        async for response, _ in backend.resolve(request, RequestInfo(), history):
            last = response
        history.append((request, last))
    await backend.process_shutdown()
    return [response.text for _, response in history]


def hold(turns: Turns, *, streamed: bool) -> list[str]:
    """The same, outside of a loop."""
    return asyncio.run(held(turns, streamed=streamed))


converse(hold)
