"""Outputs of a given form."""

from corellm_vllm import LLM, SamplingParams
from corellm_vllm.sampling_params import StructuredOutputsParams

params = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["yes", "no"]))
print(LLM(model="demo").generate("Is it red?", params)[0].outputs[0].text)
