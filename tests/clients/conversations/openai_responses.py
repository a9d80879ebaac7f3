"""OpenAI's client: responses."""

import sys
from typing import Any

import openai
from shared import Turns, converse

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="x", max_retries=0)


def hold(turns: Turns, *, streamed: bool) -> list[str]:
    """The output of each turn; all of a response's output goes back."""
    items: list[Any] = []
    texts = []
    for text, image in turns:
        parts: list[Any] = [{"type": "input_text", "text": text}]
        if image is not None:
            parts.insert(0, {"type": "input_image", "image_url": image, "detail": "auto"})
        items.append({"role": "user", "content": parts})
        asked: Any = {"model": turns.model, "input": items, "temperature": 0}
        if streamed:
            with client.responses.stream(**asked) as stream:
                response: Any = stream.get_final_response()
        else:
            response = client.responses.create(**asked)
        items += response.output
        texts.append(response.output_text)
    return texts


converse(hold)
