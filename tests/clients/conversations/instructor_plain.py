"""instructor around OpenAI's client, for outputs of no given form, which are all that the server has."""

import sys
from typing import Any

import instructor
import openai
from shared import Turns, converse

client: Any = instructor.from_openai(openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="x", max_retries=0))


def hold(turns: Turns, *, streamed: bool) -> list[str]:
    """The output of each turn; messages as its users write them."""
    messages: list[Any] = []
    for text, image in turns:
        content: Any = text if image is None else [instructor.Image.from_path(turns.path), text]
        messages.append({"role": "user", "content": content})
        asked = {"model": turns.model, "messages": messages, "temperature": 0, "response_model": None}
        response = client.chat.completions.create(**asked, stream=streamed)
        if streamed:
            written = "".join(chunk.choices[0].delta.content or "" for chunk in response)
            messages.append({"role": "assistant", "content": written})
        else:
            messages.append(response.choices[0].message.model_dump())
    return [message["content"] for message in messages[1::2]]


converse(hold)
