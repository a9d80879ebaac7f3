"""Anthropic's client: an output of a type, calls whole and streamed, results with images, its runner of tools."""

from typing import Any, Literal

import anthropic
from pydantic import BaseModel
from shared import IMAGE, Paint, model, report, url

client = anthropic.Anthropic(base_url=url, api_key="x", max_retries=0)
TOOLS: Any = [{"name": "paint", "description": "Paint", "input_schema": Paint.model_json_schema()}]
ASKED: Any = {
    "model": model, "max_tokens": 4000, "messages": [{"role": "user", "content": "Paint."}], "system": "Be brief.",
    "extra_body": {"temperature": 1.0},
}  # fmt: skip
PICTURE: Any = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": IMAGE.partition(";base64,")[2]},
}


class Star(BaseModel):
    """A star; without bounds, which this client leaves out of the schema and checks itself."""

    colour: Literal["red", "blue"]
    is_large: bool | None


def parse() -> None:
    """An output of a type."""
    assert isinstance(client.messages.parse(**ASKED, output_format=Star).parsed_output, Star)


def loop() -> None:
    """Three calls, of which one has an image as its result."""
    messages: list[Any] = [*ASKED["messages"]]
    for number in range(3):
        choice: Any = {"type": "any", "disable_parallel_tool_use": True}
        message = client.messages.create(**{**ASKED, "messages": messages}, tools=TOOLS, tool_choice=choice)
        assert message.stop_reason == "tool_use"
        (block,) = (block for block in message.content if block.type == "tool_use")
        Paint.model_validate(block.input)
        result: Any = [PICTURE] if number == 1 else "done"
        results = [{"type": "tool_result", "tool_use_id": block.id, "content": result}]
        messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    assert client.messages.count_tokens(model=model, messages=messages, tools=TOOLS).input_tokens > 100


def stream() -> None:
    """Arguments in pieces, which the client puts together."""
    choice: Any = {"type": "tool", "name": "paint"}
    with client.messages.stream(**ASKED, tools=TOOLS, tool_choice=choice) as stream:
        kinds = {event.type for event in stream}
        message = stream.get_final_message()
    assert {"input_json", "content_block_stop", "message_stop"} <= kinds
    (block,) = (block for block in message.content if block.type == "tool_use")
    Paint.model_validate(block.input)


def runner() -> None:
    """The client's own loop runs a function three times, which returns an image."""
    seen = []

    @anthropic.beta_tool
    def paint(times: int) -> Any:
        """Paint something.

        Args:
            times: how often.
        """
        seen.append(times)
        return [PICTURE]

    running = client.beta.messages.tool_runner(
        **ASKED, tools=[paint], tool_choice={"type": "any", "disable_parallel_tool_use": True}, max_iterations=3
    )
    assert all(message.stop_reason == "tool_use" for message in running)
    assert len(seen) >= 2


report(parse, loop, stream, runner)
