"""litellm: an output of a type, calls whole and streamed, and a loop whose result is an image."""

import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else its import fetches a list of prices

import litellm
from shared import IMAGE, SAMPLING, Paint, Shape, model, report, url

TOOLS = [{"type": "function", "function": {"name": "paint", "parameters": Paint.model_json_schema()}}]


def complete(messages: list[Any], **more: Any) -> Any:
    """Call its function."""
    return litellm.completion(
        model=f"openai/{model}", api_base=url + "/v1", api_key="x", num_retries=0, messages=messages, **SAMPLING, **more
    )


def response_format() -> None:
    """An output of a type, whole and streamed."""
    turn = [{"role": "user", "content": "Describe a shape."}]
    for stream in (False, True):
        response = complete(turn, response_format=Shape, stream=stream)
        response = litellm.stream_chunk_builder(list(response)) if stream else response
        Shape.model_validate_json(response.choices[0].message.content)


def loop() -> None:
    """Three calls, one of them streamed."""
    messages: list[Any] = [{"role": "user", "content": "Paint."}]
    for number in range(3):
        response = complete(messages, tools=TOOLS, tool_choice="required", stream=number == 2)
        response = litellm.stream_chunk_builder(list(response)) if number == 2 else response
        message = response.choices[0].message
        assert message.tool_calls
        messages.append(message)
        for call in message.tool_calls:
            Paint.model_validate_json(call.function.arguments)
            result: Any = [{"type": "image_url", "image_url": {"url": IMAGE}}] if number == 1 else "done"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


report(response_format, loop)
