"""Tools and reasoning in `/v1/responses`: items, their events, a loop of calls by the official client."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from corellm.outputs import CompletionOutput, Logprob, RequestOutput
from corellm_server.output_forms import OutputForm
from corellm_server.reasoning.marked import ThinkReasoning
from corellm_server.responses.model_response import ModelResponse
from corellm_server.tools.objects import HermesCalls
from extensions.server.tests.conftest import MODEL, Running, data_url
from extensions.server.tests.parsing.forms import TOOLS
from extensions.server.tests.scripted import ScriptedLLM
from extensions.server.tests.test_responses import events_of
from tests.templates.published import LLAMA, MISTRAL, QWEN

FLAT: list[Any] = [{"type": "function", **tool["function"]} for tool in TOOLS]
OUTPUT = (
    "<think>\nI must know.\n</think>\n\nI look.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Bari"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\nDone.'
)


def alike(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items without what is new each time."""
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in items]


def test_items_whole_and_streamed(running: Running, scripted: ScriptedLLM) -> None:
    """Reasoning, text, calls and text again, in order; both ways the same, by OpenAI's types."""
    scripted.outputs = [OUTPUT, OUTPUT]
    body = {"model": MODEL, "input": "x", "tools": FLAT}
    whole = running.post("/v1/responses", body).json()
    Response.model_validate(whole, strict=True)
    kinds = [item["type"] for item in whole["output"]]
    assert kinds == ["reasoning", "message", "function_call", "function_call", "message"]
    texts = [item["content"][0]["text"] for item in whole["output"] if "content" in item]
    assert texts == ["I must know.", "I look.", "Done."]
    calls = [(item["name"], item["arguments"]) for item in whole["output"] if item["type"] == "function_call"]
    assert calls == [("weather", '{"city": "Bari"}'), ("now", "{}")]
    assert whole["tools"] == FLAT
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    events = events_of(running.post("/v1/responses", {**body, "stream": True}).text)
    assert events[-1]["type"] == "response.completed"
    assert alike(events[-1]["response"]["output"]) == alike(whole["output"])
    assert alike([event["item"] for event in events if event["type"] == "response.output_item.done"]) == alike(
        whole["output"]
    )
    for number, item in enumerate(whole["output"]):
        pieces = [event["delta"] for event in events if event.get("output_index") == number and "delta" in event]
        assert "".join(pieces) == (item["arguments"] if "arguments" in item else item["content"][0]["text"])
        assert len(pieces) > 1 or item["type"] != "reasoning"


@pytest.mark.parametrize("cut", [2, 7])
def test_logprobs_are_those_of_the_message(cut: int) -> None:
    """Each has those of its own tokens, whole and streamed, wherever tokens end; also that of a token without text."""
    form = OutputForm(tool_parser=HermesCalls, reasoning_parser=ThinkReasoning)
    texts = [OUTPUT[start : start + cut] for start in range(0, len(OUTPUT), cut)]
    texts = ["", *texts, "<|end|>"]

    def completion(numbers: Sequence[int], text: str) -> RequestOutput:
        logprobs = [{number: Logprob(-float(number), 1, texts[number])} for number in numbers]
        is_last = numbers[-1] == len(texts) - 1
        made = CompletionOutput(0, text, [*numbers], finish_reason="stop" if is_last else None, logprobs=logprobs)
        return RequestOutput("r", "x", [1], [made], finished=is_last)

    def numbers_of(response: dict[str, Any]) -> list[list[float]]:
        messages = [item["content"][0] for item in response["output"] if item["type"] == "message"]
        return [[-one["logprob"] for one in part["logprobs"]] for part in messages]

    whole = ModelResponse({}, 0, form).whole(completion(range(len(texts)), OUTPUT))
    streaming, events = ModelResponse({}, 0, form), list[dict[str, Any]]()
    for number, text in enumerate(texts):
        events += streaming.events(completion([number], text if number < len(texts) - 1 else ""))
    want = []
    for text in ("I look.", "Done."):
        start = OUTPUT.index(text)
        tokens = range(start // cut + 1, (start + len(text) - 1) // cut + 2)
        want.append([*tokens] if text == "I look." else [*tokens, len(texts) - 1])
    assert numbers_of(whole) == numbers_of(events[-1]["response"]) == want
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [-one["logprob"] for event in deltas for one in event["logprobs"]] == [*want[0], *want[1]]


@pytest.mark.parametrize("template", [QWEN, LLAMA, MISTRAL])
def test_a_loop_of_three_calls(running: Running, scripted: ScriptedLLM, template: str) -> None:
    """Each response's items go back as they came, with a result, one with an image."""
    create = running.client().responses.create
    call = {
        QWEN: '<think>Hm.</think><tool_call>{"name": "weather", "arguments": {"city": "Ba"}}</tool_call>',
        LLAMA: '{"name": "weather", "parameters": {"city": "Ba"}}',
        MISTRAL: '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Ba"}}]',
    }[template]
    scripted.outputs = [call.replace("Ba", city) for city in ("Bari", "Basel", "Bath")] + ["Rain."]
    items: list[Any] = [{"role": "user", "content": "Which weather is there?"}]
    image = {"type": "input_image", "image_url": data_url(1), "detail": "auto"}
    for result in ("sun", [{"type": "input_text", "text": "see"}, image], json.dumps({"sky": "grey"})):
        got = create(model=MODEL, input=items, tools=FLAT, extra_body={"chat_template": template}).output
        items += [*got, {"type": "function_call_output", "call_id": got[-1].call_id, "output": result}]  # type: ignore[union-attr]
    last = create(model=MODEL, input=items, tools=FLAT, extra_body={"chat_template": template})
    assert last.output_text == "Rain."
    prompt = scripted.prompts[-1]
    assert all(f'{{"city": "{city}"}}' in (prompt.text or "") for city in ("Bari", "Basel", "Bath"))
    assert "grey" in (prompt.text or "")
    assert len(prompt.features) == 1


def test_several_calls_are_one_message(running: Running, scripted: ScriptedLLM) -> None:
    """Text and calls that the model wrote together are one turn of the prompt; errors name items all the same."""
    scripted.outputs = [OUTPUT, "ok"]
    create = running.client().responses.create
    first = create(model=MODEL, input="x", tools=FLAT).output[:4]
    calls = [item for item in first if item.type == "function_call"]
    results: list[Any] = [{"type": "function_call_output", "call_id": c.call_id, "output": "1"} for c in calls]
    user: Any = {"role": "user", "content": "x"}
    create(model=MODEL, input=[user, *first, *results], tools=FLAT)
    prompt = scripted.prompts[-1].text or ""
    assert prompt.count("<|im_start|>assistant") == 2
    assert prompt.index("I look.") < prompt.index('"city": "Bari"') < prompt.index('{"name": "now", "arguments"')
    with pytest.raises(openai.BadRequestError) as caught:
        create(model=MODEL, input=[user, *first, {**user, "z": 1}], tools=FLAT)
    assert caught.value.param == "input[5].z"
    wrongs: list[Any] = [
        {"type": "function_call", "name": "f"}, {"type": "function_call_output", "output": "x"},
        {"type": "computer_call"}, {"type": "function_call_output", "call_id": "a", "output": 5},
        {"reasoning_content": 5},
    ]  # fmt: skip
    for wrong in wrongs:
        with pytest.raises(openai.BadRequestError) as caught:
            create(model=MODEL, input=[user, wrong], tools=FLAT)
        assert (caught.value.param or "").startswith("input[1]")
    odd: Any = {"role": "assistant", "content": "x", "tool_calls": 5}
    with pytest.raises(openai.BadRequestError):
        create(model=MODEL, input=[user, odd, *calls[:1]], tools=FLAT)
