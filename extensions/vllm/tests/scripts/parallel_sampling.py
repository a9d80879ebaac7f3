"""Several completions of a prompt, each until a text or a token."""

from corellm_vllm import LLM, SamplingParams

llm = LLM(model="demo")
params = SamplingParams(n=3, temperature=1.0, seed=1, max_tokens=16, stop=["."], min_tokens=1)
for completion in llm.generate("What shape is it?", params)[0].outputs:
    print(completion.index, completion.text, completion.finish_reason, completion.stop_reason)
