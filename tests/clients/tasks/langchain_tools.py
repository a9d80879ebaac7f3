"""LangChain: structured output in its three methods, bound tools, and an agent whose tool returns an image."""

import functools
import operator
from typing import Any

from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from shared import IMAGE, Paint, Shape, model, report, url

SETTINGS: Any = {"base_url": url + "/v1", "api_key": "x", "temperature": 1.0, "max_tokens": 4000, "max_retries": 0}
chat = ChatOpenAI(model=model, **SETTINGS)
one_call = ChatOpenAI(model=model, model_kwargs={"parallel_tool_calls": False}, **SETTINGS)


def structured_output() -> None:
    """By a schema, by a call, and as any JSON, which need not be a shape."""
    for method in ("json_schema", "function_calling"):
        assert isinstance(chat.with_structured_output(Shape, method=method).invoke("Describe a shape."), Shape)
    asked: Any = chat.with_structured_output(Shape, method="json_mode", include_raw=True).invoke("A shape as JSON.")
    assert asked["raw"].content.lstrip().startswith("{")


def bind_tools() -> None:
    """Calls, whole and streamed."""
    bound = chat.bind_tools([Paint], tool_choice="required")
    joined = functools.reduce(operator.add, bound.stream("Paint."))
    for message in (bound.invoke("Paint."), joined):
        assert message.tool_calls
        assert all(Paint.model_validate(call["args"]) for call in message.tool_calls)


def agent() -> None:
    """Its tool is called, and its image goes to the model; the agent ends with a shape."""
    seen = []

    @tool
    def look(times: int) -> Any:
        """Look at the image."""
        seen.append(times)
        return [{"type": "image_url", "image_url": {"url": IMAGE}}]

    for _ in range(20):
        made: Any = create_agent(one_call, tools=[look], response_format=ToolStrategy(Shape))
        state = made.invoke({"messages": [{"role": "user", "content": "Look."}]}, {"recursion_limit": 60})
        assert isinstance(state["structured_response"], Shape)
        if seen:
            break
    assert seen


def agent_of_a_schema() -> None:
    """An agent whose output is held to a schema by the server."""
    made: Any = create_agent(chat, tools=[], response_format=ProviderStrategy(Shape))
    state = made.invoke({"messages": [{"role": "user", "content": "Describe a shape."}]})
    assert isinstance(state["structured_response"], Shape)


report(structured_output, bind_tools, agent, agent_of_a_schema)
