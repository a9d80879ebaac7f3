"""Drafts by a model."""

from corellm_vllm import LLM, SamplingParams

speculative_config = {"method": "eagle", "model": "demo", "num_speculative_tokens": 2}
llm = LLM(model="demo", speculative_config=speculative_config)
print(llm.generate("Hello", SamplingParams(temperature=0))[0].outputs[0].text)
