"""OpenAI's client: chat completions."""

import sys
from typing import Any

import openai
from shared import Turns, converse

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="x", max_retries=0)


def question(text: str, image: str | None) -> Any:
    """A user's message."""
    parts: list[Any] = [{"type": "text", "text": text}]
    if image is not None:
        parts.insert(0, {"type": "image_url", "image_url": {"url": image}})
    return {"role": "user", "content": parts}


def hold(turns: Turns, *, streamed: bool) -> list[str]:
    """The output of each turn; the client's own message objects go back."""
    messages: list[Any] = []
    texts = []
    for text, image in turns:
        messages.append(question(text, image))
        asked: Any = {"model": turns.model, "messages": messages, "temperature": 0}
        if streamed:
            with client.chat.completions.stream(**asked) as stream:
                message = stream.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**asked).choices[0].message
        messages.append(message)
        texts.append(message.content or "")
    return texts


converse(hold)
