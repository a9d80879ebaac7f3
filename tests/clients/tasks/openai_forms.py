"""OpenAI's client: outputs and calls of pydantic's types, streamed ones, and loops of calls, in both of its APIs."""

import json
from typing import Any

import openai
from shared import IMAGE, SAMPLING, Paint, Shape, model, report, url

client = openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0)
ASKED: Any = {"model": model, "messages": [{"role": "user", "content": "Describe a shape."}], **SAMPLING}
RESPOND: Any = {"model": model, "input": "Describe a shape.", "temperature": 1.0, "max_output_tokens": 4000}
RESULT = [{"type": "image_url", "image_url": {"url": IMAGE}}, {"type": "text", "text": "This."}]


def parse() -> None:
    """An output of a type."""
    parsed = client.chat.completions.parse(**ASKED, response_format=Shape).choices[0].message.parsed
    assert isinstance(parsed, Shape)


def parse_calls() -> None:
    """Arguments of a type."""
    tools = [openai.pydantic_function_tool(Paint)]
    message = client.chat.completions.parse(**ASKED, tools=tools, tool_choice="required").choices[0].message
    assert message.tool_calls
    assert all(isinstance(call.function.parsed_arguments, Paint) for call in message.tool_calls)


def stream_of_a_type() -> None:
    """The helper's events, and what it makes of them at the end."""
    with client.chat.completions.stream(**ASKED, response_format=Shape) as stream:
        kinds = {event.type for event in stream}
        parsed = stream.get_final_completion().choices[0].message.parsed
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert isinstance(parsed, Shape)


def stream_of_calls() -> None:
    """Arguments come in pieces, and are of their type at the end."""
    tools = [openai.pydantic_function_tool(Paint)]
    with client.chat.completions.stream(**ASKED, tools=tools, tool_choice="required") as stream:
        events = list(stream)
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert done
    assert all(isinstance(event.parsed_arguments, Paint) for event in done)


def loop() -> None:
    """Three calls, of which one has an image as its result, and a text."""
    tools: Any = [openai.pydantic_function_tool(Paint)]
    messages: list[Any] = [*ASKED["messages"]]
    for number in range(3):
        asked = {**ASKED, "messages": messages, "tools": tools, "parallel_tool_calls": False}
        choice = client.chat.completions.create(**asked, tool_choice="required", seed=number).choices[0]
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls or ()
        Paint.model_validate_json(call.function.arguments)
        result = RESULT if number == 1 else "done"
        messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": result}]
    last = client.chat.completions.create(**{**ASKED, "messages": messages, "max_tokens": 5}, tools=tools)
    assert last.choices[0].finish_reason in ("length", "stop")


def responses_parse() -> None:
    """An output of a type."""
    assert isinstance(client.responses.parse(**RESPOND, text_format=Shape).output_parsed, Shape)


def responses_stream() -> None:
    """The same, in events."""
    with client.responses.stream(**RESPOND, text_format=Shape) as stream:
        kinds = {event.type for event in stream}
        response = stream.get_final_response()
    assert {"response.output_text.delta", "response.output_text.done", "response.completed"} <= kinds
    assert isinstance(response.output_parsed, Shape)


def responses_loop() -> None:
    """Items of calls go back with their results."""
    function = openai.pydantic_function_tool(Paint)["function"]
    tools: Any = [{"type": "function", **function}]
    items: list[Any] = [{"role": "user", "content": "Paint."}]
    for number in range(3):
        asked: Any = {**RESPOND, "input": items, "tools": tools, "parallel_tool_calls": False}
        response = client.responses.create(**asked, tool_choice="required", extra_body={"seed": number})
        (item,) = response.output
        assert item.type == "function_call"
        Paint.model_validate_json(item.arguments)
        output: Any = json.dumps({"done": number})
        if number == 1:
            output = [{"type": "input_image", "image_url": IMAGE}]
        items += [item, {"type": "function_call_output", "call_id": item.call_id, "output": output}]
    assert client.responses.create(**{**RESPOND, "input": items, "max_output_tokens": 16}, tools=tools).output


report(parse, parse_calls, stream_of_a_type, stream_of_calls, loop, responses_parse, responses_stream, responses_loop)
