"""An agent of three calls with the demo model, each of which is demanded: it knows of no tools and is held to them."""

from typing import Any, Literal

import openai
from pydantic import BaseModel
from shared import IMAGE, model, report, url

client = openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0)
PICTURE = {"type": "image_url", "image_url": {"url": IMAGE}}


class Count(BaseModel):
    """Say how many shapes there are."""

    number: Literal["one", "two", "three", "four"]


class Colour(BaseModel):
    """Say which colour they have."""

    colour: Literal["red", "green", "blue", "yellow"]


class Finish(BaseModel):
    """End the work."""

    is_done: bool


def agent() -> None:
    """The second result has the image once more; calls are right as the demo model's answers are."""
    steps: Any = (("How many shapes are there?", Count), ("What colour are they?", Colour), ("Is it done?", Finish))
    messages: list[Any] = []
    for number, (question, kind) in enumerate(steps):
        text = {"type": "text", "text": question}
        messages.append({"role": "user", "content": [text] if number else [PICTURE, text]})
        name = kind.__name__
        tools: Any = [openai.pydantic_function_tool(kind)]
        choice: Any = {"type": "function", "function": {"name": name}}
        message = client.chat.completions.create(
            model=model, messages=messages, temperature=0, tools=tools, tool_choice=choice
        ).choices[0].message  # fmt: skip
        (call,) = message.tool_calls or ()
        assert call.type == "function"
        assert call.function.name == name
        kind.model_validate_json(call.function.arguments)
        result: Any = [PICTURE] if number == 1 else "yes"
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": result}]
    assert len(messages) == 9


report(agent)
