"""A conversation whose template gets tools."""

from corellm_vllm import LLM
from corellm_vllm.sampling_params import SamplingParams

llm = LLM(model="demo")
tools = [
    {
        "type": "function",
        "function": {
            "name": "count_shapes",
            "description": "Counts shapes of one kind.",
            "parameters": {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]},
        },
    }
]
messages = [{"role": "user", "content": "How many circles are there?"}]
template = "{% for tool in tools %}{{ tool.function.name }} {% endfor %}{{ messages[0].content }} ASSISTANT:"
outputs = llm.chat(messages, sampling_params=SamplingParams(max_tokens=8), tools=tools, chat_template=template)
print(outputs[0].prompt_token_ids, outputs[0].outputs[0].text.strip())
