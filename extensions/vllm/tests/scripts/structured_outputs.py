"""Outputs of a given form."""

import json
import re

from corellm_vllm import LLM, SamplingParams
from corellm_vllm.sampling_params import GuidedDecodingParams, StructuredOutputsParams

llm = LLM(model="demo")
params = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["yes", "no"], disable_fallback=True))
text = llm.generate("Is it red?", params)[0].outputs[0].text
assert text in ("yes", "no")

schema = {
    "type": "object",
    "properties": {"red": {"type": "boolean"}},
    "required": ["red"],
    "additionalProperties": False,
}
form = StructuredOutputsParams(json=schema, disable_any_whitespace=True)
text = llm.generate("Is it red?", SamplingParams(structured_outputs=form, max_tokens=40))[0].outputs[0].text
assert isinstance(json.loads(text)["red"], bool)

params = SamplingParams(guided_decoding=GuidedDecodingParams(regex="[a-z]{3}", backend="auto"), max_tokens=8)
text = llm.generate("Is it red?", params)[0].outputs[0].text
assert re.fullmatch("[a-z]{3}", text)
