"""Weights of 8 bits."""

from corellm_vllm import LLM, SamplingParams

llm = LLM(model="demo", quantization="int8")
print(llm.generate("Hello", SamplingParams(max_tokens=4))[0].outputs[0].text)
