"""LlamaIndex' `OpenAILike`: an output of a type, whole and streamed, and calls of tools."""

from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from shared import SAMPLING, Shape, model, report, url

llm = OpenAILike(
    model=model, api_base=url + "/v1", api_key="x", is_chat_model=True, is_function_calling_model=True, max_retries=0,
    should_use_structured_outputs=False, **SAMPLING,
)  # fmt: skip
held = OpenAILike(**{**llm.model_dump(), "api_key": "x", "should_use_structured_outputs": True})
PROMPT = PromptTemplate("Describe a {what}.")


def structured_predict() -> None:
    """By a call, and by a schema."""
    for one in (llm, held):
        assert isinstance(one.structured_predict(Shape, PROMPT, what="shape"), Shape)


def structured_chat() -> None:
    """A model that has nothing but outputs of a type."""
    made: Any = llm.as_structured_llm(Shape).chat([ChatMessage(role="user", content="Describe a shape.")])
    assert isinstance(made.raw, Shape)


def stream_structured() -> None:
    """The last of a stream is whole."""
    *_, last = held.stream_structured_predict(Shape, PROMPT, what="shape")  # by a call, it demands none
    assert isinstance(last, Shape)


def chat_with_tools() -> None:
    """A call, and its result in the next turn."""
    seen = []

    def paint(times: int) -> str:
        """Paint something."""
        seen.append(times)
        return "done"

    tool = FunctionTool.from_defaults(paint)
    history = [ChatMessage(role="user", content="Paint.")]
    for _ in range(3):
        response = llm.chat_with_tools([tool], chat_history=history, tool_required=True)
        history.append(response.message)
        for call in llm.get_tool_calls_from_response(response):
            result = tool.call(**call.tool_kwargs)
            told = {"tool_call_id": call.tool_id}
            history.append(ChatMessage(role="tool", content=str(result.content), additional_kwargs=told))
    assert len(seen) >= 3


report(structured_predict, structured_chat, stream_structured, chat_with_tools)
