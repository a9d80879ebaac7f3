"""LangChain and litellm ask a running server about an image; prints what they got, as JSON.

A program of its own: both take seconds to import, and litellm changes what it finds (logging, event loops).

    python -m extensions.server.tests.other_clients URL IMAGE
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else its import fetches a list of prices

import litellm
import openai
from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI

MODEL = "tiny"


def langchain(url: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Outputs of `ChatOpenAI`: whole, streamed, asynchronous, several at once, after earlier turns."""
    model = ChatOpenAI(model=MODEL, base_url=url + "/v1", api_key="x", temperature=0, max_retries=0, stream_usage=True)
    question = HumanMessage(parts)
    whole = model.invoke([question])
    chunks = list(model.stream([question]))
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined = joined + chunk

    async def asynchronous() -> list[Any]:
        streamed = [str(chunk.content) async for chunk in model.astream([question])]
        return [(await model.ainvoke([question])).content, "".join(streamed)]

    try:
        model.bind(temperature=3).invoke([question])
    except openai.BadRequestError as error:
        refused = str(error.param)
    return {
        "whole": whole.content,
        "streamed": joined.content,
        "async": asyncio.run(asynchronous()),
        "batch": [one.content for one in model.batch([[question]] * 3)],
        "later turn": model.invoke([question, AIMessage(whole.content), question]).content,
        "usage": [whole.usage_metadata, joined.usage_metadata],
        "reason": whole.response_metadata["finish_reason"],
        "refused": refused,
    }


def through_litellm(url: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Outputs of its functions: whole, streamed, asynchronous, after earlier turns."""
    turn: list[Any] = [{"role": "user", "content": parts}]
    request: dict[str, Any] = {
        "model": f"openai/{MODEL}", "api_base": url + "/v1", "api_key": "x", "temperature": 0, "num_retries": 0,
        "messages": turn,
    }  # fmt: skip
    whole = litellm.completion(**request)
    chunks = list(litellm.completion(**request, stream=True, stream_options={"include_usage": True}))

    async def asynchronous() -> list[Any]:
        stream = await litellm.acompletion(**request, stream=True)
        streamed = [chunk.choices[0].delta.content or "" async for chunk in stream]
        return [(await litellm.acompletion(**request)).choices[0].message.content, "".join(streamed)]

    try:
        litellm.completion(**{**request, "model": "openai/other"})
    except litellm.NotFoundError as error:
        refused = error.message
    rebuilt = litellm.stream_chunk_builder(chunks)
    return {
        "whole": whole.choices[0].message.content,
        "streamed": rebuilt.choices[0].message.content,
        "async": asyncio.run(asynchronous()),
        "later turn": litellm.completion(**{**request, "messages": [*turn, whole.choices[0].message, *turn]})
        .choices[0]
        .message.content,
        "usage": [whole.usage.total_tokens, rebuilt.usage.total_tokens],
        "reason": whole.choices[0].finish_reason,
        "refused": refused,
    }


if __name__ == "__main__":
    base, image = sys.argv[1:]
    content = [
        {
            "type": "image_url",
            "image_url": {"url": "data:image/png;base64," + base64.b64encode(Path(image).read_bytes()).decode()},
        },
        {"type": "text", "text": "What number is written here?"},
    ]
    print(json.dumps({"langchain": langchain(base, content), "litellm": through_litellm(base, content)}))
