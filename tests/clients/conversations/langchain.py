"""LangChain's `ChatOpenAI`."""

import functools
import operator
import sys
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from shared import Turns, converse

url, name = sys.argv[1:3]
model = ChatOpenAI(model=name, base_url=url + "/v1", api_key="x", temperature=0, max_retries=0, stream_usage=True)


def hold(turns: Turns, *, streamed: bool) -> list[str]:
    """The output of each turn; LangChain's messages go back, joined chunks of a stream too."""
    messages: list[Any] = []
    for text, image in turns:
        parts: list[Any] = [{"type": "text", "text": text}]
        if image is not None:
            parts.insert(0, {"type": "image_url", "image_url": {"url": image}})
        messages.append(HumanMessage(parts))
        if streamed:
            messages.append(functools.reduce(operator.add, model.stream(messages)))
        else:
            messages.append(model.invoke(messages))
    return [message.content for message in messages[1::2]]


converse(hold)
