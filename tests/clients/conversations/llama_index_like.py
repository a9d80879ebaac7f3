"""LlamaIndex' `OpenAILike`."""

import sys
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock
from llama_index.llms.openai_like import OpenAILike
from shared import Turns, converse

url, name = sys.argv[1:3]
model = OpenAILike(model=name, api_base=url + "/v1", api_key="x", is_chat_model=True, temperature=0, max_retries=0)


def hold(turns: Turns, *, streamed: bool) -> list[str]:
    """The output of each turn; LlamaIndex' messages go back."""
    messages: list[ChatMessage] = []
    for text, image in turns:
        blocks: list[Any] = [TextBlock(text=text)]
        if image is not None:
            blocks.insert(0, ImageBlock(url=image))
        messages.append(ChatMessage(role="user", blocks=blocks))
        if streamed:
            *_, response = model.stream_chat(messages)
        else:
            response = model.chat(messages)
        messages.append(response.message)
    return [message.content or "" for message in messages[1::2]]


converse(hold)
