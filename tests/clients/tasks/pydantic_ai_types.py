"""Pydantic AI: output types by calls and by the server's own schema, streamed, and an agent's own loop of tools."""

import base64
import contextlib
from typing import Any

from pydantic_ai import Agent, BinaryContent, NativeOutput, PromptedOutput, ToolOutput, UnexpectedModelBehavior
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from shared import IMAGE, Paint, Shape, model, report, url

PROVIDER = OpenAIProvider(base_url=url + "/v1", api_key="x")
SETTINGS: Any = {"temperature": 1.0, "max_tokens": 4000}
MODELS = [kind(model, provider=PROVIDER) for kind in (OpenAIChatModel, OpenAIResponsesModel)]


def output_types() -> None:
    """By a call, one of several types, and by a schema, in both of OpenAI's APIs."""
    for one in MODELS:
        for kind in (Shape, ToolOutput(Shape), NativeOutput(Shape), [Shape, Paint], NativeOutput([Shape, Paint])):
            made: Any = Agent(one, output_type=kind, model_settings=SETTINGS).run_sync("Describe a shape.").output
            assert isinstance(made, (Shape, Paint)), kind


def prompted_output() -> None:
    """Any JSON, which need not be a shape: the client asks again, and gives up at last."""
    asked = Agent(MODELS[0], output_type=PromptedOutput(Shape), model_settings={**SETTINGS, "max_tokens": 40})
    with contextlib.suppress(UnexpectedModelBehavior):
        asked.run_sync("Describe a shape.")


def streamed() -> None:
    """The last of a stream is whole."""
    for kind in (Shape, NativeOutput(Shape)):
        result = Agent(MODELS[0], output_type=kind, model_settings=SETTINGS).run_stream_sync("Describe a shape.")
        *_, last = result.stream_output()
        assert isinstance(last, Shape)


def loop() -> None:
    """A tool returns an image; a type ends the loop."""
    seen = []
    agent: Any = Agent(MODELS[0], output_type=Shape, model_settings=SETTINGS)

    @agent.tool_plain
    def look(times: int) -> Any:
        """Look at the image."""
        seen.append(times)
        return BinaryContent(base64.b64decode(IMAGE.partition(";base64,")[2]), media_type="image/png")

    for _ in range(20):
        assert isinstance(agent.run_sync("Look.").output, Shape)
        if seen:
            break
    assert seen


report(output_types, prompted_output, streamed, loop)
