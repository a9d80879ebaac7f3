"""Anthropic's client: messages."""

import sys
from typing import Any

import anthropic
from shared import Turns, converse

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="x", max_retries=0)


def hold(turns: Turns, *, streamed: bool) -> list[str]:
    """The output of each turn; the client's own messages go back."""
    messages: list[Any] = []
    texts = []
    for text, image in turns:
        blocks: list[Any] = [{"type": "text", "text": text}]
        if image is not None:
            data = image.partition(";base64,")[2]
            source = {"type": "base64", "media_type": "image/png", "data": data}
            blocks.insert(0, {"type": "image", "source": source})
        messages.append({"role": "user", "content": blocks})
        asked: Any = {
            "model": turns.model, "max_tokens": 64, "messages": messages, "extra_body": {"temperature": 0},
        }  # fmt: skip
        if streamed:
            with client.messages.stream(**asked) as stream:
                message: Any = stream.get_final_message()
        else:
            message = client.messages.create(**asked)
        messages.append({"role": "assistant", "content": message.content})
        texts.append("".join(block.text for block in message.content))
    return texts


converse(hold)
