"""litellm's functions."""

import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else its import fetches a list of prices

import litellm
from shared import Turns, converse


def hold(turns: Turns, *, streamed: bool) -> list[str]:
    """The output of each turn; litellm's own messages go back."""
    messages: list[Any] = []
    for text, image in turns:
        parts: list[Any] = [{"type": "text", "text": text}]
        if image is not None:
            parts.insert(0, {"type": "image_url", "image_url": {"url": image, "format": "image/png"}})
        messages.append({"role": "user", "content": parts})
        response: Any = litellm.completion(
            model=f"openai/{turns.model}", api_base=sys.argv[1] + "/v1", api_key="x", temperature=0, num_retries=0,
            messages=messages, stream=streamed,
        )  # fmt: skip
        if streamed:
            response = litellm.stream_chunk_builder(list(response))
        messages.append(response.choices[0].message)
    return [message.content for message in messages[1::2]]


converse(hold)
