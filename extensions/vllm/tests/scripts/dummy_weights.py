"""A model with random weights, to try out memory and speed."""

from corellm_vllm import LLM, SamplingParams

llm = LLM(model="demo", load_format="dummy", enforce_eager=True)
print(llm.generate("Hello", SamplingParams(max_tokens=4))[0].outputs[0].token_ids)
