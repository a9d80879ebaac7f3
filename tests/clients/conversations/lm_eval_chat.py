"""The evaluation harness' model of chat completions, which never streams."""

import sys
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion
from shared import Turns, converse

url, name = sys.argv[1:3]
model = LocalChatCompletion(model=name, base_url=url + "/v1/chat/completions", tokenizer_backend=None, max_retries=1)


def hold(turns: Turns, *, streamed: bool) -> list[str]:
    """The output of each turn, of a prompt that the harness makes of all turns before."""
    del streamed
    messages: list[Any] = []
    for text, image in turns:
        parts: list[Any] = [{"type": "text", "text": text}]
        if image is not None:
            parts.insert(0, {"type": "image_url", "image_url": {"url": image}})
        messages.append({"role": "user", "content": parts})
        arguments: Any = (model.apply_chat_template(messages), {"until": [], "max_gen_toks": 32, "temperature": 0})
        (output,) = model.generate_until([Instance("generate_until", {}, arguments, 0)])
        messages.append({"role": "assistant", "content": output})
    return [message["content"] for message in messages[1::2]]


converse(hold, ("whole",))
